"""A process that serves an instance's figures, or its page: started along, and again when it ends.

Law: neither is part of the instance's work: one that cannot be started, or ends, is logged and tried again, and ends
nothing else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fluxsched.runtime.config.operations import MetricsSettings, PageSettings
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.services.modules.starter import ChildProcess
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.paths import PAGE_NAME

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0
"""How long after its end it is started again: twice as long each time, up to the most, and from the beginning after a
run that was longer than the most (seconds)."""
CHECK_S = 0.02
END_S = 2.0
"""How long it may take to end (seconds)."""


class CompanionKind(NamedTuple):
    """What is run: the command of ours with its options, and what it is called in the log."""

    command: str
    what: str
    options: Sequence[str]
    writes: Path | None = None
    """The file that it writes anew once it serves."""


def metrics_kind(settings: MetricsSettings) -> CompanionKind | None:
    """`fluxsched metrics`; None where the configuration asks for none."""
    if settings.bind is None:
        return None
    return CompanionKind("metrics", "the exporter of metrics", _bound(settings.bind, settings.public))


def page_kind(settings: PageSettings, directory: Path, statedir: Path | None) -> CompanionKind | None:
    """`fluxsched web`, which writes its address to the run directory; None where the page is not asked for.

    With a state directory the address is there, and the run directory has a link to it: it is the same after any end.
    """
    if settings.bind is None:
        return None
    names = [word for name in settings.names for word in ("--name", name)]
    file = directory / PAGE_NAME if statedir is None else statedir.absolute() / PAGE_NAME
    if statedir is not None and not (directory / PAGE_NAME).is_symlink():
        (directory / PAGE_NAME).unlink(missing_ok=True)
        (directory / PAGE_NAME).symlink_to(file)
    options = [*_bound(settings.bind, settings.public), *names, "--address-file", str(file)]
    return CompanionKind("web", "the server of the page", options, file)


def _bound(bind: str, public: bool) -> list[str]:
    return ["--bind", bind, *(["--public"] if public else [])]


class Companion:
    """Runs a command of ours for the instance at `uri` until `close`."""

    def __init__(self, turns: Turns, kind: CompanionKind, uri: str, directory: Path) -> None:
        self._turns, self.command = turns, kind.command
        self._process: ChildProcess | None = None
        self._again: Timer | None = None
        self._again_s = AGAIN_S
        self._begun_s = 0.0
        self.why_ended: str | None = None
        """Why it ended last, if it has."""
        self._what, self._said = kind.what, logger(kind.command)
        self._words = [sys.executable, "-P", "-m", "fluxsched", kind.command, "--uri", uri, *kind.options]
        self._words += ["--instance", str(os.getpid())]
        self._log = directory / f"{kind.command}.log"
        self._file, self._before = kind.writes, _version(kind.writes)
        self._start()

    def _start(self) -> None:
        self._again = None
        self._begun_s = self._turns.clock.monotonic_s()
        try:
            self._process = ChildProcess(self._words, self._log, lambda: self._turns.post(self._ended))
        except OSError as exc:
            self._fail(str(exc))

    def _ended(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if self._turns.clock.monotonic_s() - self._begun_s > AGAIN_MAX_S:
            self._again_s = AGAIN_S
        self._fail(process.why_ended(""))

    def _fail(self, why: str) -> None:
        self.why_ended = why
        self._said.error("%s ended: %s; it is started again in %g s", self._what, why, self._again_s)
        self._again = self._turns.after(self._again_s, self._start)
        self._again_s = min(2 * self._again_s, AGAIN_MAX_S)

    async def written(self, timeout_s: float) -> str:
        """What it writes to its file once it serves; or that it does not, and why."""
        end_s = self._turns.clock.monotonic_s() + timeout_s
        while self._file is None or _version(self._file) in (None, self._before):  # it may be there from a restart
            if self.why_ended is not None or self._turns.clock.monotonic_s() > end_s:
                return f"none: {self.why_ended or 'it is not served yet'}"
            await asyncio.sleep(CHECK_S)
        return self._file.read_text().strip()

    def close(self) -> None:
        """End it."""
        if self._again is not None:
            self._again.cancel()
        if self._process is not None:
            self._process.forget()
            self._process.terminate()
            self._process.finish(END_S)


def _version(file: Path | None) -> tuple[int, int] | None:
    """What tells a file from the one that replaces it; None if there is none."""
    try:
        status = None if file is None else file.stat()
    except FileNotFoundError:
        return None
    return None if status is None else (status.st_ino, status.st_mtime_ns)
