"""What a machine gets from its host: configurations in files, a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.adapters.si import assembly
from fluxsched.adapters.si.assembly import (
    CONFIGS_KEPT_MAX,
    ConfigReader,
    PolicyGroups,
    make_machine,
    wall_clock,
)
from fluxsched.adapters.si.in_process import InProcessScheduler
from fluxsched.adapters.si.messages import RegisterResourceManagerRequest
from fluxsched.errors import InvalidValue


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

    monkeypatch.setattr(assembly, "read_config", read_config)
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
