"""A job as its keeper knows it, beside its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.runtime.loop.turns import Timer


class KeptJob:
    """One that runs, or whose end is not known to be stored."""

    __slots__ = ("_r", "_ranks", "attempt", "expiration_s", "limit", "runs")

    def __init__(self, attempt: int, expiration_s: float, r: Mapping[str, Any]) -> None:
        """`r` is its R, of the start."""
        self._r = r
        self._ranks: Idset | None = None
        self.attempt = attempt
        self.expiration_s = expiration_s
        self.limit: Timer | None = None
        self.runs = False

    @property
    def limit_s(self) -> float:
        """How long it may run, by the start of its R and its expiration, which may have changed; 0 if unknown."""
        begun_s = self._r.get("execution", {}).get("starttime") or 0.0
        return self.expiration_s - begun_s if begun_s else 0.0

    @property
    def ranks(self) -> Idset:
        """The targets that it has been given and that are not released; read when asked for, since few are asked."""
        if self._ranks is None:
            self._ranks = ResourceSet.parse(self._r).ranks
        return self._ranks

    @ranks.setter
    def ranks(self, ranks: Idset) -> None:
        self._ranks = ranks

    def end(self) -> None:
        """It has no process any more."""
        self.runs, self._ranks = False, EMPTY
        if self.limit is not None:
            self.limit.cancel()
