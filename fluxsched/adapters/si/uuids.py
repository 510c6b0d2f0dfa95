"""UUIDs of allocations (RFC 9562, version 4), of a source of chance that is given."""

from __future__ import annotations

from fluxsched.runtime.system.clock import Chance


class UuidMaker:
    """Makes one UUID a call; two sources of the system's own chance never make the same."""

    def __init__(self, chance: Chance) -> None:
        self._bits = chance.getrandbits

    def __call__(self) -> str:
        text = f"{self._bits(128):032x}"
        variant = "89ab"[self._bits(2)]
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
