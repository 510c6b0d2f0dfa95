"""The process that serves the instance's figures where `[metrics] bind` says: started along, and again when it ends.

Law: monitoring is no part of the instance's work: an exporter that cannot be started, or ends, is logged and tried
again, and ends nothing else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fluxsched.runtime.config.operations import MetricsSettings
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.services.modules.starter import ChildProcess
from fluxsched.runtime.system.log import logger

log = logger("metrics")

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0
"""How long after its end it is started again: twice as long each time, up to the most (seconds)."""
END_S = 2.0
"""How long it may take to end (seconds)."""


class Exporter:
    """Runs `fluxsched metrics` for the instance at `uri` until `close`."""

    def __init__(self, turns: Turns, settings: MetricsSettings, uri: str, directory: Path) -> None:
        self._turns = turns
        bind = [] if settings.bind is None else ["--bind", settings.bind]
        self._command = [sys.executable, "-P", "-m", "fluxsched", "metrics", "--uri", uri, *bind]
        self._command += ["--instance", str(os.getpid()), *(["--public"] if settings.public else [])]
        self._log = directory / "metrics.log"
        self._process: ChildProcess | None = None
        self._again: Timer | None = None
        self._again_s = AGAIN_S
        if settings.bind is not None:
            self._start()

    def _start(self) -> None:
        self._again = None
        try:
            self._process = ChildProcess(self._command, self._log, lambda: self._turns.post(self._ended))
        except OSError as exc:
            self._fail(str(exc))

    def _ended(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._fail(process.why_ended(""))

    def _fail(self, why: str) -> None:
        log.error("the exporter of metrics ended: %s; it is started again in %g s", why, self._again_s)
        self._again = self._turns.after(self._again_s, self._start)
        self._again_s = min(2 * self._again_s, AGAIN_MAX_S)

    def close(self) -> None:
        """End it."""
        if self._again is not None:
            self._again.cancel()
        if self._process is not None:
            self._process.forget()
            self._process.terminate()
            self._process.finish(END_S)
