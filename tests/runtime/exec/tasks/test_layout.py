"""Tasks over ranks in blocks of slots, and the names of output files: arithmetic and text only."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.runtime.exec.tasks.layout import TASKS_JOB_MAX, blocks, processing_units
from fluxsched.runtime.exec.tasks.tags import Tags


def r_of(*entries: tuple[str, dict[str, str]], nslots: int | None = None) -> ResourceSet:
    lite = [{"rank": ranks, "children": children} for ranks, children in entries]
    execution: dict[str, Any] = {"R_lite": lite, "starttime": 0, "expiration": 0}
    if nslots is not None:
        execution["nslots"] = nslots
    return ResourceSet.parse({"version": 1, "execution": execution})


def layout(jobspec: Jobspec, resources: ResourceSet) -> list[tuple[int, int, int]]:
    return [(block.rank, block.first, block.ntasks) for block in blocks(jobspec, resources)]


UNEVEN = (("3", {"core": "0-3"}), ("7", {"core": "0-1"}))


def test_a_rank_has_as_many_tasks_as_its_cores_make_slots() -> None:
    jobspec = Jobspec.from_command(["true"], ntasks=3, cores_per_task=2)
    assert layout(jobspec, r_of(*UNEVEN, nslots=3)) == [(3, 0, 2), (7, 2, 1)]


def test_without_nslots_the_slots_are_derived() -> None:
    jobspec = Jobspec.from_command(["true"], ntasks=3, cores_per_task=2)
    assert layout(jobspec, r_of(*UNEVEN)) == [(3, 0, 2), (7, 2, 1)]
    on_nodes = Jobspec.from_command(["true"], ntasks=4, nodes=2, exclusive=True)
    assert layout(on_nodes, r_of(*UNEVEN)) == [(3, 0, 2), (7, 2, 2)]


def test_whole_nodes_share_the_slots_evenly_whatever_they_have() -> None:
    jobspec = Jobspec.from_command(["true"], ntasks=4, nodes=2, exclusive=True)
    assert layout(jobspec, r_of(*UNEVEN, nslots=4)) == [(3, 0, 2), (7, 2, 2)]


def test_gpus_bound_the_slots_too() -> None:
    jobspec = Jobspec.from_command(["true"], ntasks=3, gpus_per_task=1)
    resources = r_of(("0", {"core": "0-3", "gpu": "0"}), ("1", {"core": "0-1", "gpu": "0-1"}))
    assert layout(jobspec, resources) == [(0, 0, 1), (1, 1, 2)]


def count_of(count: dict[str, Any], slots: int) -> Jobspec:
    raw = Jobspec.from_command(["true"], ntasks=slots, cores_per_task=2).to_json()
    return Jobspec.parse({**raw, "tasks": [{"command": ["true"], "slot": raw["tasks"][0]["slot"], "count": count}]})


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ({"per_slot": 2}, [(3, 0, 4), (7, 4, 2)]),
        ({"total": 1}, [(3, 0, 1), (7, 1, 0)]),
        ({"total": 3}, [(3, 0, 2), (7, 2, 1)]),
        ({"total": 5}, [(3, 0, 4), (7, 4, 1)]),
        ({"per_resource": {"type": "core", "count": 1}}, [(3, 0, 4), (7, 4, 2)]),
    ],
)
def test_every_way_to_count_tasks_fills_ranks_in_order(count: dict[str, Any], expected: list[Any]) -> None:
    assert layout(count_of(count, 3), r_of(*UNEVEN, nslots=3)) == expected


def test_too_many_tasks_are_refused_with_the_limit() -> None:
    jobspec = Jobspec.from_command(["true"], ntasks=TASKS_JOB_MAX + 1)
    with pytest.raises(LimitExceeded, match=f"{TASKS_JOB_MAX + 1} tasks.*{TASKS_JOB_MAX}"):
        blocks(jobspec, r_of(("0", {"core": "0"}), nslots=TASKS_JOB_MAX + 1))
    assert len(blocks(jobspec, r_of(("0", {"core": "0"}), nslots=TASKS_JOB_MAX))) == 1


def test_an_empty_r_runs_nowhere() -> None:
    with pytest.raises(InvalidValue, match="no ranks"):
        blocks(Jobspec.from_command(["true"]), ResourceSet())


def test_processing_units_are_the_union_of_the_cores() -> None:
    topology = [Idset.parse("0,4"), Idset.parse("1,5"), Idset.parse("2,6")]
    assert processing_units(Idset.parse("0,2"), topology) == {0, 2, 4, 6}
    assert processing_units(Idset(), topology) == set()
    assert processing_units(Idset.parse("2-3"), topology) is None


def tags(jobspec: Jobspec | None = None) -> Tags:
    """Of job 9: three tasks on node1 (rank 1), one on node5 (rank 5)."""
    resources = ResourceSet.parse(
        {"version": 1, "execution": {"R_lite": [{"rank": "1", "children": {"core": "0-2", "gpu": "1"}},
                                                {"rank": "5", "children": {"core": "7"}}],
                                     "starttime": 0, "expiration": 0, "nodelist": ["node[1,5]"]}}
    )  # fmt: skip
    jobspec = jobspec or Jobspec.from_command(["/usr/bin/prog", "x"], ntasks=4)
    return Tags(9, jobspec, blocks(jobspec, resources), resources.to_json())


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("out-{{id}}.txt", "out-ƒA.txt"),
        ("{{jobid}}/{{ id.dec }}", "ƒA/9"),
        ("{{id.f58plain}} {{jobid.hex}} {{id.dothex}}", "fA 0x9 0000.0000.0000.0009"),
        ("{{name}}-{{nnodes}}-{{size}}-{{ntasks}}", "prog-2-4-4"),
        ("{{taskid}} {{task.id}} {{task.rank}} {{task.index}} {{task.localid}}", "2 2 2 2 2"),
        ("{{node.id}} {{node.name}} {{node.broker_rank}} {{node.cores}} {{node.gpus}} {{node.ncores}}",
         "0 node1 1 0-2 1 3"),
        ("{{other}}-{{id.words}}-{{node.x}}-{{", "{{other}}-{{id.words}}-{{node.x}}-{{"),
        ("plain", "plain"),
    ],
)  # fmt: skip
def test_tags_of_a_path_are_those_of_flux(template: str, expected: str) -> None:
    assert tags().fill(template, 2) == expected


def test_tags_of_a_node_and_a_task_follow_the_task() -> None:
    assert tags().fill("{{node.id}} {{node.name}} {{node.gpus}} {{taskid}} {{task.index}}", 3) == "1 node5  3 0"


def test_the_name_of_a_job_goes_before_that_of_its_program() -> None:
    assert tags(Jobspec.from_command(["/usr/bin/prog"], name="mine", ntasks=4)).fill("{{name}}") == "mine"
