"""A handle that answers from a table, and a way to run one command line against it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fluxsched.cli.main import main
from fluxsched.core.jobspec import JobspecTemplate
from fluxsched.errors import FluxschedError

from . import sites


class FakeHandle:
    """Answers from `answers[topic]`: a dict, a list (a stream), an error to raise, or a function of the payload."""

    uri = "ipc:///run/fluxsched/instance.sock"

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, Any]] = []
        self.submitted = 0
        self.arrays = 0
        """Requests of many jobs; `calls` has each job as if it came alone."""

    def __enter__(self) -> FakeHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.calls.append(("close", None))

    def rpc(self, topic: str, payload: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        if topic == "feasibility.check" and topic not in self.answers:
            return {}  # whatever is submitted can run, unless a test says otherwise
        if topic == "job-manager.queue-list" and topic not in self.answers:
            return {"queues": []}
        if topic == "job-manager.list" and topic not in self.answers and (payload or {}).get("max_entries") == 1:
            return {"jobs": []}
        if topic == "job-manager.submit-array" and topic not in self.answers and payload is not None:
            return self._array(payload)
        self.calls.append((topic, payload))
        if topic == "job-manager.submit" and topic not in self.answers:
            return self._submitted()
        answer = self.answers[topic]
        answer = answer(payload) if callable(answer) and not isinstance(answer, type) else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _array(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Submit each of the jobs as if it came alone."""
        self.arrays += 1
        template, array = JobspecTemplate(wanted["jobspec"], wanted["paths"]), wanted["array"]
        more = {key: value for key, value in wanted.items() if key in ("urgency", "flags")}
        ids: list[int] = []
        refused: list[tuple[int, int, str]] = []
        for at, texts in enumerate(wanted["texts"]):
            try:
                request = {"jobspec": template.job(texts, array).raw, **more}
                ids.append(self.rpc("job-manager.submit", request)["id"])
                array = array or ids[0]
            except FluxschedError as fault:
                if not array:
                    raise
                ids.append(0)
                refused.append((at, fault.errnum, str(fault)))
        return {"ids": ids, "refused": refused}

    def _submitted(self) -> dict[str, Any]:
        """The next id, from 1, or of those in `answers["submit_many"]`."""
        self.submitted += 1
        answer = self.answers.get("submit_many", range(1, 10_000))
        if isinstance(answer, BaseException):
            raise answer
        return {"id": answer[self.submitted - 1]}

    def stream(
        self,
        topic: str,
        payload: dict[str, Any] | None = None,
        *,
        meanwhile: Iterable[float] = (),
        beside: Any = None,
    ) -> Iterator[Any]:
        self.delays_s = list(meanwhile)
        for answer in self.rpc(topic, payload):
            if isinstance(answer, BaseException):
                raise answer
            yield answer

    def rpc_each(
        self, topic: str, payloads: Iterable[dict[str, Any]], *, window: int = 0
    ) -> Iterator[dict[str, Any] | FluxschedError]:
        for payload in payloads:
            try:
                yield self.rpc(topic, payload)
            except FluxschedError as error:
                yield error

    def subscribe(self, topic: str, payload: Any, told: Callable[[Any], None]) -> Callable[[], None]:
        for answer in self.rpc(topic, payload):
            told(answer)
        told(None)
        return lambda: None

    def listen(self, timeout_s: float | None, beside: Any = None) -> bool:
        return True

    def submit_many(self, jobspecs: list[dict[str, Any]], urgency: int = 16) -> list[int]:
        self.calls.append(("submit_many", (jobspecs, urgency)))
        answer = self.answers.get("submit_many", range(1, len(jobspecs) + 1))
        if isinstance(answer, BaseException):
            raise answer
        return list(answer)

    def wait(self, jobid: int, *, follow: bool = True) -> Any:
        return self.rpc("job-manager.wait", {"id": jobid, **({} if follow else {"follow": False})})


class Outcome:
    """What a command line did."""

    def __init__(self, result: Result, handle: FakeHandle) -> None:
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        self.bytes_out = result.stdout_bytes
        self.calls = [call for call in handle.calls if call[0] != "close"]
        self.arrays = handle.arrays

    @property
    def status(self) -> int:
        return self.code


Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _quiet_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("FLUXSCHED_URI", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def fake() -> type[FakeHandle]:
    return FakeHandle


@pytest.fixture
def cli() -> Cli:
    """`cli("resource", "list", answers={...})` runs `fluxsched resource list`."""

    def run(
        *args: str,
        answers: dict[str, Any] | None = None,
        stdin: str | bytes | None = None,
        refusing: BaseException | None = None,
    ) -> Outcome:
        """`refusing`: what every request without an answer raises."""
        handle = FakeHandle(answers or {})
        if refusing is not None:
            handle.answers = defaultdict(lambda: refusing, handle.answers)
        result = CliRunner().invoke(main, list(args), input=stdin, obj=lambda uri: handle)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result, handle)

    return run


@pytest.fixture
def targets() -> Callable[..., Callable[[dict[str, Any]], dict[str, Any]]]:
    return sites.targets_of


@pytest.fixture
def sched_status() -> dict[str, Any]:
    return sites.sched_status()


@pytest.fixture
def status() -> dict[str, Any]:
    return sites.status()


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands ask, as on a terminal."""
    for name in ("instance", "options", "resource"):
        monkeypatch.setattr(f"fluxsched.cli.{name}.interactive", lambda: True)


@pytest.fixture
def job() -> Callable[..., dict[str, Any]]:
    return sites.job
