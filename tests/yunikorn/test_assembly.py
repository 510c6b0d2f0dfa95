"""What a machine gets from its host: configurations in files, a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.errors import InvalidValue
from fluxsched.yunikorn import service
from fluxsched.yunikorn.in_process import InProcessScheduler
from fluxsched.yunikorn.messages import (
    AllocationRequest,
    ApplicationRequest,
    NodeRequest,
    RegisterResourceManagerRequest,
)
from fluxsched.yunikorn.service import CONFIGS_KEPT_MAX, ConfigReader, PolicyGroups, make_machine, wall_clock


class Clock:
    def __init__(self) -> None:
        self.wall, self.monotonic = 1000.0, 5.0

    def wall_s(self) -> float:
        return self.wall

    def monotonic_s(self) -> float:
        return self.monotonic


def test_policy_groups_are_files_that_are_read_each_time(tmp_path: Path) -> None:
    groups = PolicyGroups(tmp_path)
    assert groups("batch") is None
    for text in ("one", "two"):
        (tmp_path / "batch.yaml").write_text(text)
        assert groups("batch") == text
    assert PolicyGroups(None)("batch") is None
    assert groups("") is None


@pytest.mark.parametrize("name", ["../batch", "a/b", "a\0b", ".hidden", "x" * 65, "a b"])
def test_what_cannot_be_a_file_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValue, match="names a file"):
        PolicyGroups(tmp_path)(name)


def test_a_file_that_cannot_be_read_is_named_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"secret \xff")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InvalidValue, match=r"binary\.yaml cannot be read: it is not UTF-8") as caught:
        PolicyGroups(tmp_path)("binary")
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidValue, match=r"folder\.yaml cannot be read: Is a directory"):
        PolicyGroups(tmp_path)("folder")


def test_a_registration_takes_its_policy_group_or_the_default(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("partitions: []\n")
    scheduler = InProcessScheduler(make_machine(tmp_path))
    with pytest.raises(InvalidValue, match="partitions"):
        scheduler.RegisterResourceManager(RegisterResourceManagerRequest(rmID="rm", policyGroup="bad"), object())
    scheduler.RegisterResourceManager(RegisterResourceManagerRequest(rmID="rm", policyGroup="none"), object())


def test_the_last_configurations_are_kept_the_bad_ones_too(monkeypatch: Any) -> None:
    read: list[str] = []

    def read_config(text: str) -> tuple[()]:
        read.append(text)
        if text == "bad":
            raise InvalidValue("a fault")
        return ()

    monkeypatch.setattr(service, "read_config", read_config)
    reader = ConfigReader()
    for _ in range(2):
        assert reader("good") == ()
        with pytest.raises(InvalidValue, match="a fault"):
            reader("bad")
    assert read == ["good", "bad"]
    for index in range(CONFIGS_KEPT_MAX):
        reader(str(index))
    reader("good")
    assert read.count("good") == 2


def test_a_step_of_the_systems_clock_moves_no_timer() -> None:
    clock = Clock()
    now_s = wall_clock(clock)
    assert now_s() == 1000.0
    clock.wall, clock.monotonic = 0.0, 7.0
    assert now_s() == 1002.0


COUNTING = """
from fluxsched.sched.hooks import PASS, Later

class Counting:
    name = "counting"

    def __init__(self):
        self.held = {}

    def look(self, job, rank):
        if len(self.held) >= 3:
            raise OSError("three are enough")
        return PASS

    def reserve(self, job, fit):
        self.held[job.jobid] = False
        return PASS

    def unreserve(self, job, fit):
        del self.held[job.jobid]

    def post_bind(self, job, fit):
        if job.adopted:
            self.held[job.jobid] = True

    def on_free(self, job, fit):
        del self.held[job.jobid]
"""


class Hearing:
    """Keeps the allocations that it is given."""

    def __init__(self) -> None:
        self.new: list[Any] = []

    def UpdateApplication(self, response: Any) -> None: ...

    def UpdateNode(self, response: Any) -> None: ...

    def UpdateAllocation(self, response: Any) -> None:
        self.new += response.new


def test_plugins_are_asked_about_asks_and_told_of_what_exists(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    machine = make_machine(plugins=[str(tmp_path / "counting.py")])
    scheduler, one, other = InProcessScheduler(machine), Hearing(), Hearing()
    amount = {"resources": {"vcore": {"value": 1}}}
    held = {"UUID": "u", "allocationKey": "k", "applicationID": "app", "resourcePerAlloc": amount}
    for rm_id, callback, existing in (("one", one, [held]), ("other", other, [])):
        scheduler.RegisterResourceManager(RegisterResourceManagerRequest(rmID=rm_id), callback)
        new = [{"applicationID": "app", "queueName": "root.default"}]
        scheduler.UpdateApplication(ApplicationRequest(rmID=rm_id, new=new))
        node = {"nodeID": "n", "action": "CREATE", "existingAllocations": existing}
        node["schedulableResource"] = {"resources": {"vcore": {"value": 100}}}
        scheduler.UpdateNode(NodeRequest(rmID=rm_id, nodes=[node]))
        ask = {"allocationKey": "a", "applicationID": "app", "maxAllocations": 9, "resourceAsk": amount}
        scheduler.UpdateAllocation(AllocationRequest(rmID=rm_id, asks=[ask]))
    with caplog.at_level("ERROR", "fluxsched"):
        scheduler.turns(1.0)
    assert (len(one.new), len(other.new)) == (2, 3), "each partition has plugins of its own"
    assert "resource manager 'one': plugin 'counting' failed" in caplog.text
    assert "three are enough" in caplog.text
    release = {"allocationsToRelease": [{"applicationID": "app", "UUID": "u"}]}
    scheduler.UpdateAllocation(AllocationRequest(rmID="one", releases=release))
    scheduler.turns(100.0)
    assert len(one.new) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [("READS = ('user',)", "reads user, which asks"), ("def queue_sort(self, job): return ()", "has queue_sort")],
)
def test_plugins_that_asks_have_nothing_for_are_refused(tmp_path: Path, text: str, why: str) -> None:
    lines = ["class Own:", "    name = 'own'", "    def post_bind(self, job, fit): ...", f"    {text}", ""]
    (tmp_path / "own.py").write_text("\n".join(lines))
    with pytest.raises(InvalidValue, match=why):
        make_machine(plugins=[str(tmp_path / "own.py")])
