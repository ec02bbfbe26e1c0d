"""Access to a dashboard: the names of its host, and its token."""

import hmac
from collections import deque
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import Final

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.files import MOST_SECRET_BYTES, read_utf8
from agentic_trading.ids import random_key
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.status_pages import is_loopback

LEAST_TOKEN_CHARS: Final = 16
MOST_TRIES: Final = 5
TRIES_WITHIN_S: Final = 60.0

STYLE: Final = "style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:"
_POLICY: Final = "default-src 'none'; {allowed}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def security_headers(style_digest: str = "") -> Mapping[str, str]:
    """Return the headers of every answer.

    Args:
        style_digest: The SHA-256 of the only style of a whole HTML file, in Base64. It may run no script.

    """
    allowed = f"style-src 'sha256-{style_digest}'" if style_digest else STYLE
    return {
        "Content-Security-Policy": _POLICY.format(allowed=allowed),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def is_own_host(header: str, bound: str) -> bool:
    """Return whether the header `Host` names the bound host. A web page elsewhere cannot send such a header.

    A server that is bound to all addresses has the name of the machine, `localhost`, and every address without a
    name.
    """
    name = header.lower().rpartition(":")[0] if _has_port(header) else header.lower()
    name = name.strip("[]")
    if is_loopback(bound):
        return name == "localhost" or is_loopback(name)
    if name == bound.lower():
        return True
    is_of_machine = _is_address(name) or name in {"localhost", gethostname().lower()}
    return is_of_machine and bound in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound


def _has_port(header: str) -> bool:
    return header.rpartition(":")[2].isdecimal() and not header.endswith("]")


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def read_token(file: Path | None, host: str) -> str:
    """Return the token in a file, or an empty text without a file. Blocks.

    Raises:
        OptionError: If the host is not loopback and there is no file, the file cannot be read, or the token
            is too short.

    """
    if file is None:
        if is_loopback(host):
            return ""
        allowed = f"a file with a token of at least {LEAST_TOKEN_CHARS} characters, or --http 127.0.0.1:PORT"
        raise OptionError("--token-file", f"missing, and --http {host} is not this machine alone", allowed)
    try:
        token = read_utf8(file, most_bytes=MOST_SECRET_BYTES).strip()
    except OSError as e:
        found = f"{file}, which cannot be read ({e.strerror})"
        raise OptionError("--token-file", found, "a text file") from e
    if len(token) < LEAST_TOKEN_CHARS:
        allowed = f"at least {LEAST_TOKEN_CHARS} random characters, as `openssl rand -hex 32` prints them"
        raise OptionError("--token-file", f"{file}, whose token has {len(token)} characters", allowed)
    return token


class TokenCheck:
    """Compares tokens, at most five wrong ones a minute.

    Args:
        token: The token. An empty one lets everyone in.
        clock: The clock of the minute.
        new_key: The source of the value of the cookie.

    """

    def __init__(
        self, token: str, *, clock: Clock | None = None, new_key: Callable[[], bytes] = random_key
    ) -> None:
        self._token = token.encode()
        # Not the token and not made from it, so that a stolen cookie ends with the process.
        self.cookie = new_key().decode()
        self._clock = clock or SystemClock()
        self._wrong: deque[float] = deque(maxlen=MOST_TRIES)

    @property
    def is_needed(self) -> bool:
        """Whether there is a token."""
        return bool(self._token)

    @property
    def is_locked(self) -> bool:
        """Whether the last minute had too many wrong tokens."""
        now = self._clock.monotonic()
        return len(self._wrong) == MOST_TRIES and now - self._wrong[0] < TRIES_WITHIN_S

    def has_cookie(self, given: str) -> bool:
        """Return whether a cookie is that of this process."""
        return hmac.compare_digest(_bytes_of(given), self.cookie.encode())

    def accepts(self, given: str) -> bool:
        """Return whether a token is right. A wrong one counts. While it is locked, every token is refused."""
        if self.is_locked:
            return False
        is_right = hmac.compare_digest(_bytes_of(given), self._token)
        if not is_right:
            self._wrong.append(self._clock.monotonic())
        return is_right


def _bytes_of(given: str) -> bytes:
    # A header with other bytes than UTF-8 has surrogates, which a strict encoder refuses.
    return given.encode("utf-8", "surrogatepass")
