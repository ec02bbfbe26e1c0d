"""Merkle trees over the hashes of a segment's lines (RFC 6962, section 2.1), and proofs of single lines."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

_LEAF: Final = b"\0"
_NODE: Final = b"\1"


def merkle_root(hashes: bytes) -> str:
    """Return the root of the tree over hashes of 32 bytes each, in hex. Raises `ValueError` without a hash."""
    level = _leaves(hashes)
    while len(level) > 1:
        level = _next_level(level)
    return level[0].hex()


class MerkleTree:
    """The tree over hashes of 32 bytes each. Raises `ValueError` without a hash."""

    def __init__(self, hashes: bytes) -> None:
        self._levels = [_leaves(hashes)]
        while len(self._levels[-1]) > 1:
            self._levels.append(_next_level(self._levels[-1]))

    @property
    def root(self) -> str:
        """The root, in hex."""
        return self._levels[-1][0].hex()

    def proof(self, index: int) -> list[str]:
        """Return the inclusion proof of a leaf: the sibling of each node up to the root, in hex.

        A node without a sibling adds no hash.
        """
        found = []
        for level in self._levels[:-1]:
            sibling = index ^ 1
            if sibling < len(level):
                found.append(level[sibling].hex())
            index //= 2
        return found


def root_of_proof(line_hash: bytes, index: int, count: int, proof: Sequence[str]) -> str:
    """Return the root that a proof leads to, in hex (RFC 9162, section 2.1.3.2).

    Empty if the proof has too few or too many hashes. Raises `ValueError` if a hash is not hex.

    Args:
        line_hash: The hash of the line.
        index: Its place among the leaves, from 0.
        count: The number of leaves.
        proof: The hashes of the proof.

    """
    if not 0 <= index < count:
        return ""
    node = sha256(_LEAF + line_hash).digest()
    rest = iter(proof)
    last = count - 1
    while last:
        if index % 2 or index < last:
            sibling = next(rest, None)
            if sibling is None:
                return ""
            pair = (bytes.fromhex(sibling), node) if index % 2 else (node, bytes.fromhex(sibling))
            node = sha256(_NODE + pair[0] + pair[1]).digest()
        index, last = index // 2, last // 2
    return node.hex() if next(rest, None) is None else ""


def _leaves(hashes: bytes) -> list[bytes]:
    if not hashes:
        raise ValueError("a segment without lines has no root")
    return [sha256(_LEAF + hashes[at : at + 32]).digest() for at in range(0, len(hashes), 32)]


def _next_level(level: Sequence[bytes]) -> list[bytes]:
    # A node without a neighbour moves up as it is. The RFC splits at the largest power of two, which is the same tree.
    pairs = [sha256(_NODE + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
    return [*pairs, level[-1]] if len(level) % 2 else pairs
