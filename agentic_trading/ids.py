"""Ids, keys and repeatable pseudo-random fractions. No other module generates random values."""

import os
from collections.abc import Callable
from hashlib import sha256
from itertools import count

import uuid_utils

NewId = Callable[[], str]
"""Return a new id on each call."""

NAMESPACE = uuid_utils.UUID("6f1d3c1e-6a1c-5c0e-9d0f-8f5b6f3f8a11")


def random_id() -> str:
    """Return a random UUID (version 4)."""
    return str(uuid_utils.uuid4())


def random_key() -> bytes:
    """Return a random key of 32 bytes, as 64 hexadecimal digits."""
    return os.urandom(32).hex().encode()


def derived_id(*parts: str | int) -> str:
    """Return the UUID (version 5) of `parts`. The same parts give the same id on any machine."""
    return str(uuid_utils.uuid5(NAMESPACE, "\x1f".join(map(str, parts))))


def seeded_ids(seed: str) -> NewId:
    """Return a source of ids. The same `seed` gives the same ids."""
    numbers = count()
    return lambda: derived_id(seed, next(numbers))


def fraction(*parts: str | int) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on `parts`.

    It consists of the first 53 bits of the SHA-256 of the parts.
    """
    digest = sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
