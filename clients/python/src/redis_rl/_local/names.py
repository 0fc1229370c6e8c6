"""Names that are remembered: long ones by a digest, so that memory is bounded in bytes."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple, TypeAlias

from .._wire import Key

LONGEST_BYTES = 256


class Digest(NamedTuple):
    """Stands for a longer name."""

    sha256: bytes


Name: TypeAlias = Key | Digest


def name_of(key: Key) -> Name:
    """What a key is remembered by."""
    # Most are so short that no encoding makes them long.
    return key if 4 * len(key) <= LONGEST_BYTES or size(key) <= LONGEST_BYTES else digest(key)


def size(key: Key) -> int:
    """Its bytes."""
    return len(key) if isinstance(key, bytes) else len(key.encode(errors="surrogatepass"))


def digest(name: object) -> Digest:
    """Of texts, bytes and numbers, and tuples of these."""
    return Digest(sha256(repr(name).encode()).digest())
