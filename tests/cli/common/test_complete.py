"""What TAB offers: values of the instance, and silence where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from click.shell_completion import ShellComplete

from fluxsched.cli.main import main
from fluxsched.cli.options import TIMEOUT_S
from fluxsched.errors import FluxschedError, RPCError

ANSWERS = {
    "job-manager.list": {"jobs": [{"id": 5, "name": "sleep", "state": "RUN"}, {"id": 99, "state": "SCHED"}]},
    "job-manager.queue-list": {"queues": ["batch", "debug"]},
    "resource.groups": {"groups": [{"name": "default"}, {"name": "lab"}]},
    "config.get": {"fair": {"banks": {"physics": 3, "optics": {"parent": "physics"}}}},
    "module.list": {"mods": [{"name": "sched-easy"}, {"name": "resource"}]},
    "resource.status": {"R": {"execution": {"nodelist": ["node[0-2]", "gpu9"], "properties": {"ssd": "0"}}}},
}


def offered(connect: Any, line: str) -> list[str]:
    *words, last = line.split(" ")
    items = ShellComplete(main, {"obj": connect}, "fluxsched", "_X").get_completions(words, last)
    return [item.value for item in items if item.type != "file"]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("wait ƒ", ["ƒ6", "ƒ2i"]),
        ("cancel f2", ["f2i"]),
        ("job info ", ["ƒ6", "ƒ2i"]),
        ("submit -q b", ["batch"]),
        ("jobs -q ", ["batch", "debug"]),
        ("submit --bank ", ["physics", "optics"]),
        ("queue stop d", ["debug"]),
        ("queue status d", ["debug"]),
        ("resource list -q d", ["debug"]),
        ("resource assign 0 l", ["lab"]),
        ("resource drain no", ["node0", "node1", "node2"]),
        ("resource status -i gpu9,node1", ["gpu9,node1"]),
        ("resource property remove node0 ", ["ssd"]),
        ("module remove s", ["sched-easy"]),
        ("module load --group ", ["default", "lab"]),
        ("module load fi", ["fifo", "firstfit"]),
        ("start --scheduler eas", ["easy"]),
        ("uri ƒ6", ["ƒ6"]),
        ("proxy f2", ["f2i"]),
        ("alloc -q d", ["debug"]),
        ("bat", ["batch"]),
        ("policy check fi", ["fifo", "firstfit"]),
        ("start --scheduler ./e", []),
    ],
)
def test_values(fake: Any, line: str, want: list[str]) -> None:
    assert offered(lambda uri: fake(ANSWERS), line) == want


def test_nothing_that_a_terminal_obeys_is_offered(fake: Any) -> None:
    jobs = [{"id": 5, "name": "a\n\x1b[31mb", "state": "RUN"}]
    answers = {"job-manager.list": {"jobs": jobs}, "job-manager.queue-list": {"queues": ["ok", "o\x1b[2J"]}}
    complete = ShellComplete(main, {"obj": lambda uri: fake(answers)}, "fluxsched", "_X").get_completions
    (job,) = complete(["wait"], "ƒ")
    assert (job.value, job.help) == ("ƒ6", r"a\n\x1b[31mb RUN")
    assert [item.value for item in complete(["jobs", "-q"], "o")] == ["ok"]


def test_the_instance_is_the_one_that_is_named(fake: Any) -> None:
    asked = []

    def connect(uri: str | None) -> Any:
        asked.append(uri)
        return fake(ANSWERS)

    assert offered(connect, "module remove --uri ipc:///x s") == ["sched-easy"]
    assert asked == ["ipc:///x"]


@pytest.mark.parametrize("error", [FluxschedError("no instance"), RPCError("no", 38), FileNotFoundError(2, "gone")])
def test_no_instance_or_no_answer_offers_nothing(fake: Any, error: Exception) -> None:
    def connect(uri: str | None) -> Any:
        raise error

    answers: dict[str, Any] = dict.fromkeys(ANSWERS, error)
    for line in ("wait ", "submit -q ", "resource drain ", "resource assign 0 ", "module remove "):
        assert offered(connect, line) == []
        assert offered(lambda uri: fake(answers), line) == []
    assert TIMEOUT_S <= 1
