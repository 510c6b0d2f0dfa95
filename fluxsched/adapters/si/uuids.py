"""UUIDs of allocations: of version 4 in form (RFC 9562), a random part for each process and a count."""

from __future__ import annotations

from fluxsched.system.clock import Chance


class UuidMaker:
    """Makes one UUID a call; two with a chance of their own never make the same."""

    __slots__ = ("_count", "_start")

    def __init__(self, chance: Chance) -> None:
        text = f"{chance.getrandbits(60):015x}"
        variant = "89ab"[chance.getrandbits(2)]
        self._start = f"{text[:8]}-{text[8:12]}-4{text[12:]}-{variant}"
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        text = f"{self._count:015x}"
        return f"{self._start}{text[:3]}-{text[3:]}"
