"""Prove the sender of a message by a keyed signature in its headers."""

import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from typing_extensions import override

from agentic_trading.bus.errors import SignatureError, SigningKeyError
from agentic_trading.bus.message import Message

PRINCIPAL_HEADER: Final = "at_principal"
SIGNATURE_HEADER: Final = "at_signature"
SHORTEST_KEY: Final = 32
"""Bytes; as many as the hash has (RFC 2104 §3)."""

_TAG: Final = b"agentic/message/v1"
_SIGNED_PREFIXES: Final = ("ce_", "at_")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}")
_NAME_WORDS: Final = "1 to 128 letters, digits and ._@-, no dot or dash in front"


class Signer:
    """Sign messages as one principal; no repr shows the key. Raises `SigningKeyError` for an invalid name or key."""

    def __init__(self, principal: str, key: bytes) -> None:
        _check_name(principal, "the principal")
        _check_key(key, f"the key of {principal}")
        self.principal = principal
        self._key = key

    def sign(self, message: Message) -> Message:
        """Return the message with two headers more, its sender and the proof; a signature that it had is replaced.

        The proof is an HMAC-SHA256 over the message's key, its value and every header that is named `ce_…`, `at_…` or
        `content-type`, under whatever topic it goes. Others, such as `traceparent`, may change on the way. A message
        that is sent twice is proved twice: its idempotency key makes it count once.
        """
        headers = {**message.headers, PRINCIPAL_HEADER: self.principal}
        headers.pop(SIGNATURE_HEADER, None)
        headers[SIGNATURE_HEADER] = _signature(self._key, message, headers)
        return Message(message.key, message.value, headers)

    @override
    def __repr__(self) -> str:
        return f"Signer({self.principal!r}, …)"


class Verifier:
    """Check the senders of messages, given the keys of each principal, of which each is valid; no repr shows one.

    Raises `SigningKeyError` for an invalid name or key.
    """

    def __init__(self, keys: Mapping[str, Sequence[bytes]]) -> None:
        for principal, its_keys in keys.items():
            _check_name(principal, "the principal")
            for key in its_keys:
                _check_key(key, f"the key of {principal}")
        self._keys = dict(keys)

    def principal_of(self, message: Message) -> str:
        """Return the principal that sent the message; raises `SignatureError` if that is not proved."""
        principal = message.headers.get(PRINCIPAL_HEADER, "")
        given = message.headers.get(SIGNATURE_HEADER, "")
        if not principal or not given:
            raise SignatureError("missing", principal)
        keys = self._keys.get(principal)
        if keys is None:
            raise SignatureError("unknown_principal", principal)
        expected = (_signature(key, message, message.headers).encode() for key in keys)
        if not any(hmac.compare_digest(one, _bytes(given)) for one in expected):
            raise SignatureError("wrong", principal)
        return principal

    @override
    def __repr__(self) -> str:
        return f"Verifier({', '.join(map(repr, self._keys))})"


def read_keys(folder: Path) -> dict[str, bytes]:
    """Read the keys in a folder: one a file, by the file's name; white space around a key is no part of it.

    Names that begin with a dot are left out, as secret mounts have them. Blocks. Raises `SigningKeyError` for a folder
    or a file that cannot be read, an invalid name, a key that is too short, and one that two files hold.
    """
    keys: dict[str, bytes] = {}
    owners: dict[bytes, str] = {}
    for path in _files(folder):
        _check_name(path.name, str(path))
        try:
            key = path.read_bytes().strip()
        except OSError as e:
            raise SigningKeyError(str(path), f"cannot be read ({e.strerror})", "a file with a key") from e
        _check_key(key, str(path))
        owner = owners.setdefault(key, path.name)
        if owner != path.name:
            raise SigningKeyError(str(path), f"is the key of {owner} too", "a key of its own for each")
        keys[path.name] = key
    return keys


def keys_by_principal(
    keys: Mapping[str, bytes], names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[bytes, ...]]:
    """Return the keys of each principal in `names`, which gives the names of its keys; other keys are left out.

    Raises `SigningKeyError` for a key that is not there.
    """
    for principal, wanted in names.items():
        if missing := [name for name in wanted if name not in keys]:
            known = ", ".join(sorted(keys)) or "none"
            raise SigningKeyError(f"the key {missing[0]!r} of {principal}", "is not there", known)
    return {principal: tuple(keys[name] for name in wanted) for principal, wanted in names.items()}


def _files(folder: Path) -> list[Path]:
    try:
        files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    except OSError as e:
        raise SigningKeyError(str(folder), f"cannot be read ({e.strerror})", "a folder of keys") from e
    if not files:
        raise SigningKeyError(str(folder), "holds no key", "a file with a key for each principal")
    return files


def _signature(key: bytes, message: Message, headers: Mapping[str, str]) -> str:
    digest = hmac.new(key, digestmod=sha256)
    for part in _parts(message, headers):
        digest.update(len(part).to_bytes(8, "big"))  # so that no byte can move from one part into the next
        digest.update(part)
    return digest.hexdigest()


def _parts(message: Message, headers: Mapping[str, str]) -> Iterator[bytes]:
    yield _TAG
    yield _bytes(message.key)
    for name in sorted(filter(_is_signed, headers)):
        yield _bytes(name)
        yield _bytes(headers[name])
    yield message.value


def _is_signed(name: str) -> bool:
    return name != SIGNATURE_HEADER and (name.startswith(_SIGNED_PREFIXES) or name == "content-type")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise SigningKeyError(where, f"is called {name[:128]!r}", _NAME_WORDS)


def _check_key(key: bytes, where: str) -> None:
    if len(key) < SHORTEST_KEY:
        raise SigningKeyError(where, f"has {len(key)} bytes", f"{SHORTEST_KEY} and more, all of them random")
