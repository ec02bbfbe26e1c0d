"""Sign messages with HMAC in their headers, and verify their senders, with keys from a folder."""

import hmac
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from typing_extensions import override

from agentic_trading.bus.errors import SignatureError, SigningKeyError
from agentic_trading.bus.message import Message
from agentic_trading.files import MOST_SECRET_BYTES, check_unmarked, read_file
from agentic_trading.ids import random_key

PRINCIPAL_HEADER: Final = "at_principal"
SIGNATURE_HEADER: Final = "at_signature"
REPLAYED_HEADER: Final = "at_replayed"
"""The id of the dead letter from which a message was published again. The original sender did not set it, so
it is not signed."""

SHORTEST_KEY: Final = 32
"""The minimum key length in bytes: the size of the hash (RFC 2104 §3)."""

_TAG: Final = b"agentic/message/v1"
_SIGNED_PREFIXES: Final = ("ce_", "at_")
_UNSIGNED: Final = (SIGNATURE_HEADER, REPLAYED_HEADER)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}")
_NAME_WORDS: Final = "1 to 128 letters, digits and ._@-, no dot or dash in front"


class Signer:
    """Sign messages as one principal, with the first of its keys.

    The repr does not show keys. Raises `SigningKeyError` for an invalid name or key.
    """

    def __init__(self, principal: str, *keys: bytes) -> None:
        _check_name(principal, "the principal")
        self.principal = principal
        self._keys: tuple[bytes, ...] = ()
        self.renew(keys)

    def renew(self, keys: Sequence[bytes]) -> None:
        """Sign with the first of `keys` from now on.

        Raises `SigningKeyError` if `keys` is empty or contains an invalid key.
        """
        if not keys:
            raise SigningKeyError(f"the key of {self.principal}", "is missing", "one key or more")
        for key in keys:
            _check_key(key, f"the key of {self.principal}")
        self._keys = tuple(keys)

    def as_now(self) -> Self:
        """Return a copy with the current keys. Later calls of `renew` do not change the copy."""
        return type(self)(self.principal, *self._keys)

    def sign(self, message: Message) -> Message:
        """Return the message with two more headers: its principal and the signature.

        An existing signature is replaced. The signature is an HMAC-SHA256 over the key, the value, and every
        header named `ce_…`, `at_…` or `content-type`. It does not cover the topic, nor headers that may
        change on the way, such as `traceparent` and `REPLAYED_HEADER`. A message that is sent twice is
        verified twice, and counts once because of its idempotency key.
        """
        headers = {**message.headers, PRINCIPAL_HEADER: self.principal}
        headers.pop(SIGNATURE_HEADER, None)
        headers[SIGNATURE_HEADER] = _signature(self._keys[0], message, headers)
        return Message(message.key, message.value, headers)

    def has_signed(self, message: Message) -> bool:
        """Whether the message was signed by this principal, with any of its keys."""
        if message.headers.get(PRINCIPAL_HEADER) != self.principal:
            return False
        given = _bytes(message.headers.get(SIGNATURE_HEADER, ""))
        signatures = (_signature(key, message, message.headers).encode() for key in self._keys)
        return any(hmac.compare_digest(one, given) for one in signatures)

    @override
    def __repr__(self) -> str:
        return f"Signer({self.principal!r}, …)"


class Verifier:
    """Verify the senders of messages.

    All given keys of a principal are valid. The repr does not show keys. Raises `SigningKeyError` for an
    invalid name or key.
    """

    def __init__(self, keys: Mapping[str, Sequence[bytes]]) -> None:
        self._signers: Mapping[str, Sequence[Signer]] = {}
        self.renew(keys)

    def renew(self, keys: Mapping[str, Sequence[bytes]]) -> None:
        """Replace the valid keys. Raises `SigningKeyError` for an invalid name or key."""
        self._signers = {
            principal: [Signer(principal, key) for key in its_keys] for principal, its_keys in keys.items()
        }

    def signer_of(self, message: Message) -> Signer:
        """Return a signer of the principal that sent the message, with the key that it used.

        Raises `SignatureError` if the sender is not verified.
        """
        principal = message.headers.get(PRINCIPAL_HEADER, "")
        if not principal or not message.headers.get(SIGNATURE_HEADER):
            raise SignatureError("missing", principal)
        signers = self._signers.get(principal)
        if signers is None:
            raise SignatureError("unknown_principal", principal)
        for signer in signers:
            if signer.has_signed(message):
                return signer
        raise SignatureError("wrong", principal)

    @override
    def __repr__(self) -> str:
        return f"Verifier({', '.join(map(repr, self._signers))})"


def read_keys(folder: Path) -> dict[str, tuple[bytes, ...]]:
    """Read the keys in a folder, by file name.

    White space around a key is removed. Blocks. A name may also be a folder with several keys. They are
    ordered by file name, and numbers by their value. Names that begin with a dot are skipped, because mounted
    secrets contain such files.

    Raises:
        SigningKeyError: If a folder or a file cannot be read, a name is invalid, a key is too short, or two
            names have the same key.

    """
    keys: dict[str, tuple[bytes, ...]] = {}
    owners: dict[bytes, str] = {}
    for path in _files(folder):
        _check_name(path.name, str(path))
        keys[path.name] = tuple(map(_read_key, _files(path) if path.is_dir() else [path]))
        for key in keys[path.name]:
            owner = owners.setdefault(key, path.name)
            if owner != path.name:
                raise SigningKeyError(
                    str(path), f"is also the key of {owner}", "a different key for each name"
                )
    return keys


def write_key(folder: Path, name: str, *, add: bool = False) -> Path:
    """Write a random key to the new file `NAME/1` in `folder`, and return its path.

    Blocks. Only the owner of the file may read it. With `add`, the key gets the next number and is valid in
    addition to the existing keys.

    Raises:
        SigningKeyError: If a key exists already, if with `add` no key exists, if the name is invalid, or if
            the file cannot be written.

    """
    _check_name(name, "the key")
    place = folder / name
    if place.is_file():
        raise SigningKeyError(str(place), "is a file with one key, not a folder", f"the file at {place}/1")
    try:
        held = [path.name for path in place.glob("[!.]*")]
        if held and not add:
            raise SigningKeyError(str(place), f"already has keys ({len(held)})", "--add, to add another key")
        if add and not held:
            raise SigningKeyError(str(place), "has no key yet", "a first key, without --add")
        for each in (folder, place):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = place / str(1 + max((int(each) for each in held if each.isdecimal()), default=0))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(random_key() + b"\n")
    except OSError as e:
        raise SigningKeyError(
            str(place), f"cannot be written ({e.strerror})", "a folder that you can write to"
        ) from e
    return path


def keys_stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes when a key in a folder is added, removed or replaced.

    Blocks. It consists of names, modification times and sizes. Raises `SigningKeyError` if the folder cannot
    be read.
    """
    found: list[tuple[str, int, int]] = []
    for path in _files(folder):
        for file in _files(path) if path.is_dir() else [path]:
            try:
                status = file.stat()
            except OSError as e:
                raise _unreadable(file, e) from e
            found.append((str(file.relative_to(folder)), status.st_mtime_ns, status.st_size))
    return tuple(found)


def keys_by_principal(
    keys: Mapping[str, Sequence[bytes]], names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[bytes, ...]]:
    """Return the keys of each principal in `names`, which maps principals to key names.

    Other keys are left out. Raises `SigningKeyError` if a key is missing.
    """
    for principal, wanted in names.items():
        if missing := [name for name in wanted if name not in keys]:
            known = ", ".join(sorted(keys)) or "none"
            raise SigningKeyError(f"the key {missing[0]!r} of {principal}", "is missing", known)
    return {
        principal: tuple(key for name in wanted for key in keys[name]) for principal, wanted in names.items()
    }


def _read_key(path: Path) -> bytes:
    try:
        key = read_file(path, most_bytes=MOST_SECRET_BYTES).strip()
        check_unmarked(path, key)
    except OSError as e:
        raise _unreadable(path, e) from e
    _check_key(key, str(path))
    return key


def _unreadable(path: Path, e: OSError) -> SigningKeyError:
    return SigningKeyError(str(path), f"cannot be read ({e.strerror})", "a file with a key")


def _files(folder: Path) -> list[Path]:
    try:
        files = [path for path in sorted(folder.iterdir(), key=_place) if not path.name.startswith(".")]
    except OSError as e:
        raise SigningKeyError(str(folder), f"cannot be read ({e.strerror})", "a folder of keys") from e
    if not files:
        raise SigningKeyError(str(folder), "has no key", "a file with a key for each principal")
    return files


def _place(path: Path) -> tuple[int, str]:
    return int(path.name) if path.name.isdecimal() else 0, path.name


def _signature(key: bytes, message: Message, headers: Mapping[str, str]) -> str:
    digest = hmac.new(key, digestmod=sha256)
    for part in _parts(message, headers):
        digest.update(len(part).to_bytes(8, "big"))  # so that no byte can move from one part to the next
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
    return name not in _UNSIGNED and (name.startswith(_SIGNED_PREFIXES) or name == "content-type")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise SigningKeyError(where, f"is called {name[:128]!r}", _NAME_WORDS)


def _check_key(key: bytes, where: str) -> None:
    if len(key) < SHORTEST_KEY:
        raise SigningKeyError(where, f"has {len(key)} bytes", f"{SHORTEST_KEY} or more, all random")
