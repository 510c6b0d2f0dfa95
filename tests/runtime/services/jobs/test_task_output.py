"""Reading what tasks write: whose it is, at whose turn, how much at a time, and that nothing is lost or said twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fluxsched.errors import Refused
from fluxsched.runtime.exec.tasks.layout import TASKS_JOB_MAX
from fluxsched.runtime.services.jobs.streams import OUTPUT_POLL_S
from fluxsched.runtime.services.jobs.task_output import CHUNK_BYTES, TASK_CHUNKS, TURN_LOOKS, Budget, TaskOutput

Said = list[tuple[int | None, str, bytes]]
Write = Callable[[str, bytes], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def append(name: str, data: bytes) -> None:
        with (tmp_path / name).open("ab") as file:
            file.write(data)

    return append


def bite(output: TaskOutput, *, ended: bool = False, budget: Budget | None = None) -> Said:
    pieces = output.bite(budget or Budget(), ended=ended)
    return [(piece.task, piece.stream, piece.data) for piece in pieces]


def test_an_only_task_is_read_as_it_writes(tmp_path: Path, write: Write) -> None:
    output = TaskOutput(tmp_path / "not made yet")
    assert bite(output) == []
    output = TaskOutput(tmp_path)
    write("stdout", b"now")
    write("stderr", b"oh\n")
    assert bite(output) == [(0, "stdout", b"now"), (0, "stderr", b"oh\n")]
    assert bite(output) == []
    write("stdout", b" later\n")
    assert bite(output, ended=True) == [(0, "stdout", b" later\n")]
    assert output.is_complete


def test_tasks_are_found_whenever_they_come_and_told_apart(tmp_path: Path, write: Write) -> None:
    output = TaskOutput(tmp_path)
    write("stdout.0", b"zero\n")
    assert bite(output) == [(0, "stdout", b"zero\n")]
    for task in (1, 2, 3):
        write(f"stdout.{task}", b"")
        write(f"stderr.{task}", b"%d\n" % task)
    assert bite(output) == [(task, "stderr", b"%d\n" % task) for task in (1, 2, 3)]
    write("stdout.4", b"four\n")
    write("stdout.0", b"more\n")
    assert sorted(bite(output)) == [(0, "stdout", b"more\n"), (4, "stdout", b"four\n")]
    assert not output.is_complete
    assert bite(output, ended=True) == []
    assert output.is_complete


def test_a_job_without_files_is_complete_when_it_has_ended(tmp_path: Path) -> None:
    output = TaskOutput(tmp_path)
    assert (bite(output, ended=True), output.is_complete) == ([], True)


def test_a_task_that_goes_on_is_cut_at_the_ends_of_its_lines(tmp_path: Path, write: Write) -> None:
    output = TaskOutput(tmp_path)
    write("stdout.0", b"one\ntw")
    assert bite(output) == [(0, "stdout", b"one\n")]
    write("stdout.0", b"o\nthr")
    assert bite(output) == [(0, "stdout", b"two\n")]
    assert bite(output) == [(0, "stdout", b"thr")], "a prompt has no end of line"
    write("stdout.0", b"ee\nand an end")
    assert bite(output, ended=True) == [(0, "stdout", b"ee\nand an end")]


def test_who_floods_its_output_does_not_starve_others_and_nothing_is_lost(tmp_path: Path, write: Write) -> None:
    flood = b"x" * (3 * TASK_CHUNKS * CHUNK_BYTES) + b"\nend"
    write("stdout.0", flood)
    write("stdout.1", b"me too\n")
    output = TaskOutput(tmp_path)
    first = bite(output)
    assert len(first) == TASK_CHUNKS + 1
    assert first[-1] == (1, "stdout", b"me too\n")
    rest: Said = []
    while not output.is_complete:
        budget = Budget()
        rest += bite(output, ended=True, budget=budget)
        assert budget.chunks >= 0
    assert b"".join(data for task, _, data in first + rest if task == 0) == flood


def test_many_tasks_are_found_and_read_with_bounded_work_a_turn(tmp_path: Path, write: Write) -> None:
    for task in range(100):
        write(f"stdout.{task}", b"%d\n" % task if task in (0, 50, 99) else b"")
    output, found, turns = TaskOutput(tmp_path), [], 0
    while not output.is_complete:
        budget = Budget(looks=20)
        found += bite(output, ended=True, budget=budget)
        assert budget.looks >= -1  # a task's two streams go together
        turns += 1
    assert [task for task, _, _ in found] == [0, 50, 99]
    assert turns <= 2 * 102 / 20 + 1
    assert 2 * TASKS_JOB_MAX / TURN_LOOKS * OUTPUT_POLL_S < 1, "the most tasks are seen every second"


def test_a_budget_that_is_spent_leaves_the_rest_for_later(tmp_path: Path, write: Write) -> None:
    for task in range(6):
        write(f"stdout.{task}", b"%d\n" % task)
    output, found = TaskOutput(tmp_path), []
    for _ in range(4):
        found += bite(output, budget=Budget(chunks=2))
    assert [task for task, _, _ in found] == list(range(6))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    os.symlink("stdout.0", tmp_path / "stdout.0")
    with pytest.raises(Refused, match=r"cannot read stdout\.0 of the job: Too many levels"):
        bite(TaskOutput(tmp_path))


def test_what_a_response_was_worth_ends_the_bite(tmp_path: Path, write: Write) -> None:
    write("stdout", b"line\n" * 100)
    output = TaskOutput(tmp_path, 42)
    budget = Budget(chunks=4)
    said = []
    for piece in output.bite(budget, ended=True):
        said.append(piece.data)
        budget.chunks -= 1
    assert said == [b"line\n" * 8] * 2
    rest = b"".join(data for _, _, data in bite(output, ended=True, budget=Budget(chunks=99)))
    assert rest == b"line\n" * 84
