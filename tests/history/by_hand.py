"""A clock that is moved by hand, and a store whose transactions are written at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fluxsched.store.store import ImmediateWriter, Store
from fluxsched.system.clock import local_hour
from fluxsched.system.loop import Turns

BEGIN_S = float(local_hour(1_795_370_400.0))
"""The beginning of an hour in local time, which some zones shift by parts of an hour."""


class ByHand:
    """Both clocks, turns without a loop, and a store on disk; `start` opens what an instance before has left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_s = BEGIN_S
        self.set_s = 0.0
        self.start()

    def wall_s(self) -> float:
        return self.now_s + self.set_s

    def monotonic_s(self) -> float:
        return self.now_s

    def start(self) -> None:
        self.turns = Turns(self)
        self.turns.wall_s = self.wall_s()
        self.store = Store(self.directory / "state", self.turns, ImmediateWriter())

    def flush(self) -> None:
        """Have all written that was added, and long work done."""
        self.store.flush()
        while self.turns._works or self.turns._first or self.turns._posted:
            self.turns._run_posted(self.now_s + 1.0)
            self.store.flush()

    def pass_s(self, duration_s: float, step_s: float = 10.0) -> None:
        """Let time go by, in steps."""
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + step_s)
            self.turns.wall_s = self.wall_s()
            self.turns._fire(self.now_s)
            self.flush()

    def lose(self) -> None:
        """What was not written is gone."""
        self.store._groups = []
        self.store.close()

    def close(self) -> None:
        self.flush()
        self.store.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.store.read(sql)
