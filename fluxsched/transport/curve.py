"""Keys of CURVE, ZeroMQ's encryption: 32 bytes each, written as 64 hexadecimal digits. A secret is never shown.

Hexadecimal, and not ZeroMQ's Z85, because Z85 is full of characters that shells and URIs take for their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from fluxsched.errors import InvalidValue

KEY_BYTES = 32
_HEX = re.compile(r"[0-9a-f]{64}")


class KeyPair:
    """A public key with its secret, which no text of this object shows."""

    __slots__ = ("public", "secret")

    def __init__(self, public: bytes, secret: bytes) -> None:
        self.public = public
        self.secret = secret

    def __repr__(self) -> str:
        return f"KeyPair({self.public.hex()}, ...)"


class ServerKeys(NamedTuple):
    """Keys of a server on CURVE: its own pair, and whether a public key from an address may connect."""

    own: KeyPair
    admits: Callable[[bytes, str], bool]


def parse_key(text: str) -> bytes:
    """The bytes of a key. Raises InvalidValue, without repeating what may be a secret."""
    if not _HEX.fullmatch(text):
        raise InvalidValue(f"a key has 64 hexadecimal digits in lower case; these are {len(text)} characters")
    return bytes.fromhex(text)
