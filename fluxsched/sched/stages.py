"""The decisions of a pass where more than the policy decides.

Law: one stage after the other, each begun when the one before has decided all; what the engine says of a decision goes
to the stage that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fluxsched.sched.decisions import Decision


class Stages:
    """The decisions of one stage after the other. What is thrown in goes to the one that decides.

    `watch` sees each decision before it is passed on.
    """

    def __init__(
        self, stages: Iterable[Callable[[], Iterable[Decision]]], watch: Callable[[Decision], None] | None = None
    ) -> None:
        self._watch = watch
        self._stages = iter(stages)
        self._at = iter(next(self._stages)())

    def __iter__(self) -> Iterator[Decision]:
        return self

    def __next__(self) -> Decision:
        while True:
            try:
                decision = next(self._at)
            except StopIteration:
                self._at = iter(next(self._stages)())
                continue
            if self._watch is not None:
                self._watch(decision)
            return decision

    def throw(self, fault: BaseException) -> Decision:
        """What the engine raises out of the policy's own `yield`."""
        throw: Callable[[BaseException], Decision] | None = getattr(self._at, "throw", None)
        if throw is None:
            raise fault
        return throw(fault)

    def close(self) -> None:
        """The pass is dropped."""
        close = getattr(self._at, "close", None)
        if close is not None:
            close()
