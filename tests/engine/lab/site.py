"""An instance on n1 that runs jobs on all hosts of a lab, by one of the engines."""

from __future__ import annotations

import json
import subprocess
from types import TracebackType
from typing import Any

from tests.engine.lab.engines import restore_flux
from tests.engine.lab.hosts import Lab, Process, until


class Site:
    """`fluxsched start` on n1, for a `with` statement; `options` follow `--engine`."""

    def __init__(self, lab: Lab, kind: str, *options: object) -> None:
        self.lab = lab
        self.kind = kind
        self.all = f"n[1-{len(lab.names)}]"
        self._log = lab.directory / "site.log"
        spec = f"ssh:{self.all}" if kind == "ssh" else kind
        self._words = ["fluxsched", "start", "--engine", spec, *map(str, options), "--", "sleep", "inf"]
        self._process: subprocess.Popen[str] | None = None
        self._allocation: subprocess.Popen[str] | None = None
        self._holder = ""

    def __enter__(self) -> Site:
        try:
            if self.kind == "slurm":
                self._words = ["env", *self._allocate(), *self._words]
            self.start()
        except BaseException:
            self._release()
            raise
        return self

    def restore_engine(self) -> None:
        """Start again what the engine has on each host and has ended by itself because of a cut."""
        if self.kind == "flux":
            restore_flux(self.lab)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            self.kill()
            self._release()

    def _allocate(self) -> list[str]:
        """Have all hosts allocated by Slurm; return the variables of the allocation."""
        hold = "echo $$; env; echo end; exec sleep inf"
        words = ["salloc", "-Q", f"-N{len(self.lab.names)}", "--no-kill", "sh", "-c", hold]
        self._allocation = self.lab.popen("n1", *words)
        assert self._allocation.stdout is not None
        self._holder, *lines = iter(self._allocation.stdout.readline, "end\n")
        return [line.rstrip("\n") for line in lines if line.startswith("SLURM_")]

    def _release(self) -> None:
        if self._allocation is not None:
            self.lab.kill("n1", int(self._holder))
            self._allocation.communicate(timeout=60)
            self._allocation = None

    def start(self, *, is_up: bool = True) -> None:
        """Start the instance; with `is_up`, all hosts are up afterwards."""
        with self._log.open("a") as log:
            self._process = self.lab.popen("n1", *self._words, stdout=log, stderr=log)
        try:
            until(lambda: self.has_ended or not is_up or self.up() == self.all, "all hosts are up")
            if self.has_ended:
                raise AssertionError("the instance has ended")
        except BaseException as exc:
            exc.add_note(self.log)
            self.kill()
            raise

    @property
    def has_ended(self) -> bool:
        """Return whether the instance, or the command that runs it, has ended."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Stop the instance as a user does."""
        if not self.has_ended:
            assert self._process is not None
            self("stop", status=None)
            self._process.wait(60)

    def kill(self) -> None:
        """Kill the instance (SIGKILL), if it runs."""
        if self._process is not None:
            for one in self.instance():
                self.lab.run("n1", "kill", "-9", one.pid, status=None)
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def instance(self) -> list[Process]:
        """Return the process of the instance."""
        return [one for one in self.commands("n1", "fluxsched start --engine") if "python" in one.command.split()[0]]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def __call__(self, *words: object, host: str = "n1", status: int | None = 0) -> str:
        """Return what `fluxsched WORDS` prints."""
        return self.lab.run(host, "fluxsched", *words, status=status)

    def up(self) -> str:
        """Return the hosts that are up, as a hostlist; "" while nothing listens, too."""
        words = ("resource", "list", "-s", "up", "-n", "-o", "{nodelist}")
        with self.lab.popen("n1", "fluxsched", *words) as process:
            return process.communicate()[0].strip()

    def info(self, jobid: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("job", "info", "--json", jobid))
        return found

    def submit(self, *words: object) -> str:
        return self("submit", *words).strip()

    def running(self, *words: object) -> str:
        """Return the id of a job that has started."""
        jobid = self.submit(*words)
        self("job", "wait-event", jobid, "start")
        return jobid

    def commands(self, host: str, text: str) -> list[Process]:
        """Return the processes on a host whose command has this text."""
        return [one for one in self.lab.processes(host) if text in one.command]

    def everywhere(self, text: str) -> dict[str, list[Process]]:
        """Return the processes with this text on all hosts that are up and have any."""
        found = {name: self.commands(name, text) for name in self.lab.names if self.lab.is_up(name)}
        return {name: processes for name, processes in found.items() if processes}
