"""Where a server may be: an address that messages and records can show."""

from typing import Literal, assert_never
from urllib.parse import urlsplit

Fault = Literal["", "secret", "no_address"]
"""What is wrong with an address: it holds a user or a password, it is none (or has a query or a fragment), or nothing."""


def fault_of(address: str) -> Fault:
    """Return what is wrong with the address of a server: http or https, a host, and a path at most."""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return "no_address"
    if parts.username is not None or parts.password is not None:
        return "secret"
    return "no_address" if not is_address or parts.query or parts.fragment else ""


def showable(address: str) -> str:
    """Return an address that is none as a message may show it: quoted, or a word where it may hold a secret."""
    return "no address" if {"@", "?", "#"} & set(address) else repr(address)


def checked_address(base_url: str) -> str:
    """Return an address that holds no secret; raises `ValueError` for one that may hold one, or is none."""
    match fault_of(base_url):
        case "":
            return base_url
        case "secret":
            was, allowed = "an address with a password in it", "a key from the environment or a file"
        case "no_address":
            was, allowed = showable(base_url), "http(s)://HOST[:PORT][/PATH]"
        case fault:
            assert_never(fault)
    raise ValueError(f"the base URL is {was}; allowed is {allowed}")
