"""URLs of buses and ledgers: which are allowed, and how they are shown."""

import re
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, urlsplit

_KAFKA = re.compile(r"kafka://[\w.\[\]:-]+:\d{1,5}(,[\w.\[\]:-]+:\d{1,5})*", re.ASCII)
_TLS_FILES: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})


def redis_address(address: str) -> str:
    """Return the URL of a Redis unchanged. Raises `ValueError` with the text of the allowed values."""
    try:
        parts = urlsplit(address)
        options = {
            name
            for name, _ in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        }
        place = parts.path if parts.scheme == "unix" else parts.hostname
        is_one = parts.scheme in {"redis", "rediss", "unix"} and bool(place) and parts.port != 0
        is_one &= options <= (_TLS_FILES if parts.scheme == "rediss" else frozenset())
    except ValueError:  # the port is not a number
        is_one = False
    if not is_one:
        files = ", ".join(sorted(_TLS_FILES))
        raise ValueError(
            f"redis://HOST:PORT, rediss://HOST:PORT, or unix://PATH. After a ?, rediss accepts only {files}"
        )
    return address


def bus_address(address: str) -> str:
    """Return the URL of a bus unchanged. Raises `ValueError` with the text of the allowed values."""
    if _KAFKA.fullmatch(address):
        return address
    with suppress(ValueError):
        place = urlsplit(redis_address(address))
        if not place.query and (place.scheme == "unix" or (place.path.strip("/") or "0").isdecimal()):
            return address
    raise ValueError(
        "kafka://HOST:PORT[,HOST:PORT...], redis://HOST:PORT, rediss://HOST:PORT, or unix://PATH"
    )


def without_password(url: str) -> str:
    """Return a URL with `…` in place of user and password."""
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"…@{host}").geturl() if at else url
