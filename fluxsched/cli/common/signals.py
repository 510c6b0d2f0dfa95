"""Signals that end a command in an orderly way: what it has started is undone first.

Law: a signal that the caller has us ignore (nohup) stays ignored. Within `hold` the first one waits until the answer
that says what there is to undo is here; a second one does not wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from fluxsched.cli.common.base import EndedBySignal

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_USUAL = (signal.SIG_DFL, signal.default_int_handler)


class EndingSignals:
    """While it is entered, SIGINT, SIGTERM and SIGHUP raise EndedBySignal in the main thread."""

    def __init__(self) -> None:
        self._before: dict[int, Callable[..., Any] | int | None] = {}
        self._is_held = False
        self._came: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in _ENDING:
                if signal.getsignal(signum) in _USUAL:
                    self._before[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """A signal that comes within is raised by `release`."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def release(self) -> None:
        """Raises EndedBySignal if a signal came while they were held."""
        if self._came is not None:
            raise EndedBySignal(self._came)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        if self._is_held and self._came is None:
            self._came = signum
            return
        raise EndedBySignal(signum)
