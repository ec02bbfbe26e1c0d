"""Where a server may be: an address that messages and records can show."""

from urllib.parse import urlsplit


def checked_address(base_url: str) -> str:
    """Return an address that holds no secret; raises `ValueError` for one that may hold one, or is none."""
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise _no_address(base_url) from None
    if parts.username or parts.password:  # messages name the address
        raise ValueError(
            "the base URL holds a user or a password; allowed is a key from the environment or a file"
        )
    if not is_address or parts.query or parts.fragment:
        raise _no_address(base_url)
    return base_url


def _no_address(base_url: str) -> ValueError:
    shown = "" if {"@", "?", "#"} & set(base_url) else f" {base_url!r}"
    return ValueError(f"the base URL{shown} is no address; allowed is http(s)://HOST[:PORT][/PATH]")
