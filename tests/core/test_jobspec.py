"""Jobspec (RFC 14, 25): the RFC's examples, counts, every refusal by path, and bombs."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import jobfields
from fluxsched.core.constraint import Constraint
from fluxsched.core.jobfields import USUAL
from fluxsched.core.jobspec import (
    ARRAY_TEXTS_MAX,
    DEPTH_MAX,
    MEMBERS_MAX,
    Count,
    Jobspec,
    JobspecTemplate,
    PartAsked,
    Request,
    with_parts,
)
from fluxsched.core.request import COUNT_MAX
from fluxsched.errors import InvalidValue, LimitExceeded

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc25_jobspec.json").read_text())["cases"]


def small() -> dict[str, Any]:
    return Jobspec.from_command(["true"], nodes=2, gpus_per_task=1, duration_s=60.0).to_json()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The small jobspec with one part replaced, or removed where the value is ...."""
    obj: Any = copy.deepcopy(small())
    whole = obj
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in steps:
        obj = obj[step] if isinstance(step, int) else obj.setdefault(step, {})
    if value is ...:
        del obj[last]
    else:
        obj[last] = value
    return whole


# ---- reading


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_rfc25_examples(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["jobspec"])
    spec = Jobspec.parse(case["jobspec"])
    assert str(spec.request) == case["request"]
    assert (spec.duration_s, spec.cwd, spec.environment) == (3600.0, "/home/flux", {"HOME": "/home/flux"})
    assert spec.to_json() == before == case["jobspec"]
    assert Jobspec.parse(json.dumps(before)) == Jobspec.parse(json.dumps(before).encode()) == spec


def test_everything_that_is_read() -> None:
    spec = Jobspec.from_command(
        ["sh", "-c", "echo $A"],
        ntasks=4,
        cores_per_task=2,
        gpus_per_task=1,
        nodes=2,
        exclusive=True,
        duration_s=1.5,
        queue="batch",
        cwd="/tmp",
        environment={"A": "1", "B": None},
        constraint={"properties": ["ssd"]},
        dependencies=[{"scheme": "afterok", "value": "f1"}],
        test_run_duration_s=0.001,
        output="out",
        error="err",
        name="first",
    )
    constraint = Constraint.parse({"properties": ["ssd"]})
    assert spec.request == Request(Count.fixed(2), Count.fixed(2), 2, 1, True, constraint)
    assert str(spec.request) == "2 exclusive nodes of 2 slots of 2 cores, 1 gpu with ssd"
    assert hash(spec.request) == hash(Jobspec.parse(spec.to_json()).request)
    assert (spec.command, spec.ntasks_per_slot, spec.ntasks(4)) == (("sh", "-c", "echo $A"), 1, 4)
    assert (spec.duration_s, spec.queue, spec.cwd, spec.environment) == (1.5, "batch", "/tmp", {"A": "1", "B": None})
    assert spec.dependencies == ({"scheme": "afterok", "value": "f1"},)
    assert (spec.test_run_duration_s, spec.output, spec.error, spec.job_name) == (0.001, "out", "err", "first")


def test_what_is_absent() -> None:
    spec = Jobspec.parse(changed("attributes", None))
    assert (spec.duration_s, spec.queue, spec.cwd, spec.environment, spec.dependencies) == (0.0, None, None, {}, ())
    assert (spec.test_run_duration_s, spec.output, spec.error, spec.job_name) == (None, None, None, None)
    assert str(Jobspec.from_command(["true"]).request) == "1 slot of 1 core"


def test_unknown_system_attributes_are_let_through() -> None:
    spec = Jobspec.parse(changed("attributes/system/ledger", {"any": ["thing"]}))
    assert spec.to_json()["attributes"]["system"]["ledger"] == {"any": ["thing"]}


def test_output_that_goes_elsewhere_is_no_file() -> None:
    spec = Jobspec.parse(changed("attributes/system/shell/options/output/stdout", {"type": "kvs"}))
    assert spec.output is None


@pytest.mark.parametrize(
    ("count", "fields", "ntasks"),
    [
        ({"per_slot": 2}, (2, None, None), 12),
        ({"total": 5}, (None, 5, None), 5),
        ({"per_resource": {"type": "core", "count": 2}}, (None, None, ("core", 2)), 12),
        ({"per_resource": {"type": "gpu", "count": 3}}, (None, None, ("gpu", 3)), 18),
    ],
)
def test_task_counts(count: Any, fields: Any, ntasks: int) -> None:
    spec = Jobspec.parse(changed("tasks/0/count", count))
    assert (spec.ntasks_per_slot, spec.ntasks_total, spec.ntasks_per_resource) == fields
    assert spec.ntasks(6) == ntasks


def test_a_run_duration_is_an_fsd() -> None:
    assert Jobspec.parse(changed("attributes/system/exec/test/run_duration", "2m")).test_run_duration_s == 120.0
    assert Jobspec.from_command(["x"], test_run_duration_s=math.inf).test_run_duration_s == math.inf
    assert Jobspec.from_command(["x"], test_run_duration_s=1e-7).test_run_duration_s == 1e-7


# ---- countable resources (RFC 14)


def counted(per_slot: list[Any], per_node: list[Any], per_job: list[Any]) -> dict[str, Any]:
    slot = {"type": "slot", "count": 2, "label": "task", "with": [{"type": "core", "count": 4}, *per_slot]}
    return {
        "version": 1,
        "resources": [{"type": "node", "count": 3, "with": [slot, *per_node]}, *per_job],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": {}},
    }


def test_countable_resources_per_slot_node_and_job() -> None:
    request = Jobspec.parse(
        counted(
            [{"type": "memory", "count": 8, "unit": "GiB"}, {"type": "fpga", "count": "2"}],
            [{"type": "disk", "count": 2, "unit": "TB"}],
            [{"type": "matlab", "count": 1}, {"type": "comsol", "count": 3, "exclusive": True}],
        )
    ).request
    assert request.amounts == (("fpga", 2), ("memory", 8 << 30))
    assert request.node_amounts == (("disk", 2 * 10**12),)
    assert request.shared == (("comsol", 3), ("matlab", 1))
    assert str(request) == (
        "3 nodes of 2000000000000 disk and 2 slots of 4 cores, 2 fpga, 8 GiB memory and 3 comsol and 1 matlab"
    )


@pytest.mark.parametrize(
    ("vertex", "text"),
    [
        ({"type": "memory"}, "count: memory needs a count that is one number of 1 or more, not none"),
        ({"type": "memory", "count": 0}, "count: memory needs a count"),
        ({"type": "memory", "count": "1-2"}, "count: memory needs a count that is one number"),
        ({"type": "memory", "count": {"min": 1}}, "count: memory needs a count that is one number"),
        ({"type": "memory", "count": True}, "count: memory needs a count"),
        ({"type": "memory", "count": 1, "unit": "GiBs"}, "unit 'GiBs' is not known: give B, kB, MB"),
        ({"type": "memory", "count": 1 << 20, "unit": "PiB"}, "above the limit"),
        ({"type": "memory", "count": 1, "with": []}, r"with: memory is counted, it has no with"),
        ({"type": "memory", "count": 1, "label": "x"}, r"label: memory is counted, it has no label"),
        ({"type": "node", "count": 1}, "type: node cannot occur here"),
    ],
)
def test_wrong_countables_are_refused_by_path(vertex: dict[str, Any], text: str) -> None:
    places = [([vertex], [], [], r"\.with\[0\]\.with\[1\]"), ([], [vertex], [], r"\.with\[1\]")]
    for per_slot, per_node, per_job, path in places:
        with pytest.raises(InvalidValue, match=rf"^resources\[0\]{path}.*{text}"):
            Jobspec.parse(counted(per_slot, per_node, per_job))


def test_a_kind_asked_for_twice_or_without_end_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"resources\[2\]\.type: x occurs twice here"):
        Jobspec.parse(counted([], [], [{"type": "x", "count": 1}] * 2))
    with pytest.raises(InvalidValue, match="resources must be a list of one vertex"):
        Jobspec.parse(counted([], [], [{"type": f"x{n}", "count": 1} for n in range(17)]))


def test_countables_of_a_command() -> None:
    jobspec = Jobspec.from_command(["a"], nodes=2, amounts_per_task={"memory": "8GiB"}, shared={"matlab": 2})
    assert (jobspec.request.amounts, jobspec.request.shared) == ((("memory", 8 << 30),), (("matlab", 2),))
    with pytest.raises(InvalidValue, match="'much' is not an amount such as 2 or 512GiB"):
        Jobspec.from_command(["a"], amounts_per_task={"memory": "much"})


# ---- refusals

NODE, SLOT = "resources/0", "resources/0/with/0"
CORE, GPU = f"{SLOT}/with/0", f"{SLOT}/with/1"
SYSTEM = "attributes/system"
BAD = [
    ("version", 2, r"version must be 1 \(RFC 25\), or 999 for several parts \(RFC 14\), not 2"),
    ("version", True, "version must be 1"),
    ("version", ..., "jobspec has no version"),
    ("resources", ..., "jobspec has no resources"),
    ("tasks", ..., "jobspec has no tasks"),
    ("attributes", ..., "jobspec has no attributes"),
    ("resources", [], "resources must be a list of one vertex.* not a list of 0"),
    ("resources", {}, "resources must be a list of one vertex.* not an object"),
    ("resources", [1], r"resources\[0\] must be an object with type and count, not a number"),
    (f"{NODE}/type", "switch", r"resources\[0\]\.with: switch is counted, it has no with"),
    (f"{NODE}/type", {"x": 1}, r"resources\[0\]\.type: an object is not the name of a countable resource"),
    (f"{NODE}/type", "-x", r"resources\[0\]\.type: '-x' is not the name .* nor a type of RFC 25: node, slot"),
    (f"{NODE}/type", "core", r"resources\[0\]\.type: core cannot occur here, only node or slot"),
    (f"{NODE}/count", ..., r"resources\[0\] has no count"),
    (f"{NODE}/count", 0, r"resources\[0\]\.count: count must be 1 or more, not 0"),
    (f"{NODE}/count", "2-", r"resources\[0\]\.count: "),
    (f"{NODE}/exclusive", 1, r"resources\[0\]\.exclusive must be true or false"),
    (f"{NODE}/unit", 1, r"resources\[0\]\.unit must be a string"),
    (f"{NODE}/id", "3", r"resources\[0\]: unknown id"),
    (f"{NODE}/with", ..., r"resources\[0\]\.with must be a list of one slot .* not null"),
    (f"{NODE}/with", [], r"resources\[0\]\.with must be a list of one slot .* not a list of 0"),
    (f"{SLOT}/type", "node", r"resources\[0\]\.with\[0\]\.type: node cannot occur here, only slot"),
    (f"{SLOT}/label", ..., r"resources\[0\]\.with\[0\]\.label: a slot needs a label"),
    (f"{SLOT}/count", True, r"resources\[0\]\.with\[0\]\.count: count must be an integer"),
    (f"{CORE}/type", "memory", r"resources\[0\]\.with\[0\]\.with: a slot needs core"),
    (f"{GPU}/type", "memory2!", r"with\[0\]\.with\[1\]\.type: 'memory2!' is not the name of a countable resource"),
    (f"{CORE}/type", "slot", r"with\[0\]\.with\[0\]\.type: slot cannot occur here, only core or gpu"),
    (f"{CORE}/with", [], r"with\[0\]\.with\[0\]\.with: core cannot contain anything"),
    (f"{GPU}/count", -1, r"resources\[0\]\.with\[0\]\.with\[1\]\.count: count must be 1 or more, not -1"),
    (f"{GPU}/count", "1-2", r"with\[1\]\.count: 1-2 must be one number"),
    (f"{GPU}/type", "core", r"with\[1\]\.type: core occurs twice here"),
    (f"{SLOT}/with", [{"type": "gpu", "count": 1}], r"resources\[0\]\.with\[0\]\.with: a slot needs core"),
    ("tasks", [], "tasks must be a list of one object"),
    ("tasks/0/slot", "other", r"tasks\[0\]\.slot: 'other' is not the label of the slot, 'task'"),
    ("tasks/0/surprise", 1, r"tasks\[0\]: unknown surprise"),
    ("tasks/0/command", [], r"tasks\[0\]\.command must be a list of strings that is not empty"),
    ("tasks/0/command", ["a", 1], r"tasks\[0\]\.command\[1\] must be a string"),
    ("tasks/0/command", ["a\0"], r"tasks\[0\]\.command\[0\] must be a string without NUL"),
    ("tasks/0/command", [""], r"tasks\[0\]\.command\[0\] is empty"),
    ("tasks/0/count", {}, r"tasks\[0\]\.count must be an object with one of per_slot, total, per_resource"),
    ("tasks/0/count", {"per_slot": 1, "total": 1}, r"tasks\[0\]\.count must be"),
    ("tasks/0/count", {"per_slot": 0}, r"tasks\[0\]\.count\.per_slot must be an integer of 1 or more"),
    ("tasks/0/count", {"per_resource": {"type": "node", "count": 1}}, r"per_resource\.type: 'node' is not in the slot"),
    ("tasks/0/count", {"per_resource": {"type": "core"}}, r"per_resource must be an object with type and count"),
    ("attributes", [], "attributes must be an object, not an array"),
    ("attributes/other", {}, "attributes: unknown other"),
    (SYSTEM, None, r"attributes\.system must be an object, not null"),
    (f"{SYSTEM}/duration", "1h", r"attributes\.system\.duration must be a number of seconds"),
    (f"{SYSTEM}/duration", -1, r"attributes\.system\.duration must be a number of seconds within 0"),
    (f"{SYSTEM}/duration", math.nan, r"attributes\.system\.duration"),
    (f"{SYSTEM}/duration", 10**400, r"attributes\.system\.duration"),
    (f"{SYSTEM}/queue", "", r"attributes\.system\.queue must be a string"),
    (f"{SYSTEM}/cwd", 1, r"attributes\.system\.cwd must be a string"),
    (f"{SYSTEM}/job/name", 1, r"attributes\.system\.job\.name must be a string"),
    (f"{SYSTEM}/environment", [], r"attributes\.system\.environment must be an object"),
    (f"{SYSTEM}/environment", {"A": 1, "B": [], "C": ""}, r"attributes\.system\.environment: A, B must be a string"),
    (f"{SYSTEM}/environment", {"A=B": "", "": "", "C": "\0", "D": ""}, r"environment: 'A=B', '', 'C' cannot be set"),
    (f"{SYSTEM}/dependencies", {}, r"attributes\.system\.dependencies must be a list"),
    (f"{SYSTEM}/dependencies", [1], r"dependencies\[0\] must be an object with scheme and value"),
    (f"{SYSTEM}/dependencies", [{"scheme": "after"}], r"dependencies\[0\]\.value must be a string"),
    (f"{SYSTEM}/dependencies", [{"scheme": 1, "value": "1"}], r"dependencies\[0\]\.scheme must be a string"),
    (f"{SYSTEM}/constraints", {"color": ["red"]}, r"attributes\.system\.constraints: .*color"),
    (f"{SYSTEM}/exec/test/run_duration", "soon", r"attributes\.system\.exec\.test\.run_duration: "),
    (f"{SYSTEM}/exec/test", 1, r"attributes\.system\.exec\.test must be an object"),
    (f"{SYSTEM}/shell/options/output/stdout", "x", r"shell\.options\.output\.stdout must be an object"),
    (f"{SYSTEM}/shell/options/output/stderr", {"type": "file"}, r"output\.stderr\.path is missing"),
]


@pytest.mark.parametrize(("path", "value", "text"), BAD, ids=range(len(BAD)))
def test_refused_by_path(path: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        Jobspec.parse(changed(path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", '{"version": Infinity}', "1" * 5000])
def test_text_that_is_no_object(text: str | bytes) -> None:
    with pytest.raises(InvalidValue, match="jobspec"):
        Jobspec.parse(text)


# ---- bombs


def nested(depth: int) -> Any:
    obj: Any = {}
    for _ in range(depth):
        obj = {"with": [obj]}
    return obj


BOMBS = [
    ("deep attributes", changed("attributes/user", nested(DEPTH_MAX)), "nested deeper than the limit of 32 levels"),
    ("deep resources", changed("resources", [nested(5000)]), "nested deeper than the limit of 32 levels"),
    ("deep text", '{"a":' * 100_000, "nested too deeply"),
    ("wide", changed("attributes/user", {"x": [0] * MEMBERS_MAX}), f"more than {MEMBERS_MAX} members"),
    ("long command", changed("tasks/0/command", ["x"] * (MEMBERS_MAX + 1)), f"more than {MEMBERS_MAX} members"),
    ("huge count", changed(f"{NODE}/count", COUNT_MAX + 1), rf"resources\[0\]\.count: .* limit of {COUNT_MAX}"),
    ("huge range", changed(f"{NODE}/count", "1-9999999999"), rf"resources\[0\]\.count: .* limit of {COUNT_MAX}"),
    ("huge list", changed(f"{NODE}/count", "1-4000000,4000002"), "limit is 4096; give a range"),
    ("huge tasks", changed("tasks/0/count", {"total": 10**300}), rf"tasks\[0\]\.count\.total .* {COUNT_MAX}"),
    (
        "dependencies",
        changed(f"{SYSTEM}/dependencies", [{"scheme": "a", "value": "b"}] * (jobfields.DEPENDENCIES_MAX + 1)),
        f"the limit is {jobfields.DEPENDENCIES_MAX}",
    ),
    ("constraint", changed(f"{SYSTEM}/constraints", {"properties": ["x"] * 9999}), r"attributes\.system\.constraints"),
]


@pytest.mark.parametrize(("obj", "text"), [bomb[1:] for bomb in BOMBS], ids=[bomb[0] for bomb in BOMBS])
def test_bombs_are_refused(obj: Any, text: str) -> None:
    with pytest.raises(LimitExceeded, match=text):
        Jobspec.parse(obj)


def test_shared_parts_cannot_multiply_unseen() -> None:
    laugh: Any = ["ha"] * 10
    for _ in range(12):
        laugh = [laugh] * 10
    with pytest.raises(LimitExceeded, match="members"):
        Jobspec.parse(changed("attributes/user", {"x": laugh}))


# ---- what the command line makes


@pytest.mark.parametrize(
    ("options", "request_text", "tasks"),
    [
        ({}, "1 slot of 1 core", {"per_slot": 1}),
        ({"ntasks": 8, "cores_per_task": 2}, "8 slots of 2 cores", {"per_slot": 1}),
        ({"nodes": 4}, "4 nodes of 1 core", {"per_slot": 1}),
        ({"nodes": 4, "exclusive": True}, "4 exclusive nodes of 1 core", {"per_slot": 1}),
        ({"nodes": 4, "ntasks": 8, "gpus_per_task": 1}, "4 nodes of 2 slots of 1 core, 1 gpu", {"per_slot": 1}),
        ({"nodes": 4, "ntasks": 5}, "4 nodes of 2 slots of 1 core", {"total": 5}),
        ({"nodes": "2-4"}, "2-4 nodes of 1 core", {"per_slot": 1}),
        ({"nodes": "2+", "ntasks": 4}, "2+ nodes of 2 slots of 1 core", {"total": 4}),
        ({"nodes": {"min": 2}}, "2+ nodes of 1 core", {"per_slot": 1}),
    ],
)
def test_layouts(options: Any, request_text: str, tasks: Any) -> None:
    spec = Jobspec.from_command(["x"], **options)
    assert str(spec.request) == request_text
    assert spec.to_json()["tasks"][0]["count"] == tasks
    assert json.loads(json.dumps(spec.to_json())) == spec.to_json()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ntasks": 0}, "number of tasks must be 1 or more, not 0"),
        ({"nodes": 4, "ntasks": 3}, "3 tasks cannot be spread over 4 nodes"),
        ({"nodes": 4, "ntasks": 1}, "1 task cannot be spread over 4 nodes"),
        ({"exclusive": True}, "exclusive requests whole nodes"),
        ({"cores_per_task": 0}, r"with\[0\]\.count: count must be 1 or more"),
        ({"duration_s": -1}, "duration must be"),
        ({"constraint": {"x": []}}, "constraints"),
    ],
)
def test_layouts_refused(options: Any, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        Jobspec.from_command(["x"], **options)


@settings(max_examples=60)
@given(
    ntasks=st.integers(1, 99),
    cores=st.integers(1, 9),
    gpus=st.integers(0, 3),
    nodes=st.none() | st.integers(1, 9),
    duration_s=st.floats(0, 1e9),
)
def test_parse_print(ntasks: int, cores: int, gpus: int, nodes: int | None, duration_s: float) -> None:
    ntasks = max(ntasks, nodes or 1)
    spec = Jobspec.from_command(
        ["x"], ntasks=ntasks, cores_per_task=cores, gpus_per_task=gpus, nodes=nodes, duration_s=duration_s
    )
    assert Jobspec.parse(json.dumps(spec.to_json())) == spec
    slots = spec.request.slots.min * (spec.request.nodes.min if spec.request.nodes else 1)
    assert slots >= ntasks
    assert spec.ntasks(slots) == ntasks


def test_a_duration_is_seconds() -> None:
    path = "attributes/system/duration"
    assert Jobspec.parse(changed(path, jobfields.SECONDS_MAX)).duration_s == jobfields.SECONDS_MAX
    with pytest.raises(InvalidValue, match="duration must be a number of seconds within"):
        Jobspec.parse(changed(path, jobfields.SECONDS_MAX * 1.01))


def test_a_scheduler_reads_what_it_decides_by() -> None:
    spec = Jobspec.from_command(
        ["true"], nodes="2-4", exclusive=True, duration_s=60.0, queue="q", name="n", bank="b", job_set="s",
        preemptible_after_s=5.0, constraint={"properties": ["p"]}, elastic=True, max_hops=2, environment={"A": "1"},
    )  # fmt: skip
    read = Jobspec.for_scheduler(spec.to_json())
    for name in ("raw", "bare", "request", "duration_s", "queue", "job_name", "sharing"):
        assert getattr(read, name) == getattr(spec, name), name
    assert (read.command, read.dependencies) == ((), ())
    several = with_parts(Jobspec.from_command(["true"], nodes=1, exclusive=True).to_json(), PARTS)
    assert Jobspec.for_scheduler(several).request == Jobspec.parse(several).request


PARTS = [PartAsked("a", 1, ["x"]), PartAsked("b", "2-3", ["y"])]


@pytest.mark.parametrize("bank", ["", 7, "x" * 300, "a\nb", None, ["b"]])
def test_a_bank_that_is_none_counts_as_not_given(bank: object) -> None:
    raw = changed("attributes/system/bank", bank)
    raw["attributes"]["system"]["preemptible-after"] = "soon"
    assert Jobspec.for_scheduler(raw).sharing is USUAL


@pytest.mark.parametrize("path", ["version", "resources", "attributes/system"])
def test_a_scheduler_refuses_what_it_cannot_read(path: str) -> None:
    with pytest.raises(InvalidValue, match=path.replace("/", ".")):
        Jobspec.for_scheduler(changed(path, "x"))


# Jobs of one request.

WORD, NAME = ["tasks", 0, "command", 1], ["attributes", "system", "job", "name"]
CC = ["attributes", "system", "environment", "FLUX_JOB_CC"]


def of_array(word: str, name: str, array: int) -> Jobspec:
    made = Jobspec.from_command(["echo", word, "z"], name=name, environment={"A": "b", "FLUX_JOB_CC": name}).to_json()
    made["attributes"]["system"]["array"] = array
    return Jobspec.parse(made)


def test_the_jobs_of_a_template_are_read_as_if_each_had_come_alone() -> None:
    template = JobspecTemplate(of_array("", "n", 0).raw, [WORD, NAME, CC])
    for word, name, array in (("x", "1", 0), ("", "2", 7), ("\u00e4", "3", 7)):
        made, alone = template.job([word, name, name], array), of_array(word, name, array)
        assert (made, made.raw, made.bare) == (alone, alone.raw, alone.bare)
    alike = JobspecTemplate(of_array("", "n", 0).raw, [WORD])
    first, second = alike.job(["a"], 5), alike.job(["b"], 5)
    assert (first.command, second.command) == (("echo", "a", "z"), ("echo", "b", "z"))
    assert first.environment is second.environment
    assert alike.job([""], 0).raw == of_array("", "n", 0).raw


@pytest.mark.parametrize(
    "path",
    [[], ["version"], ["tasks"], ["tasks", 1, "command", 0], ["tasks", 0, "command", 9], ["tasks", 0, "command", -1],
     ["resources", 0, "type"], ["attributes", "system", "duration"], ["attributes", "user", "n"], [*WORD, 0],
     ["tasks", "0"], ["attributes", 0]],
)  # fmt: skip
def test_jobs_differ_in_texts_of_tasks_and_attributes_only(path: list[str | int]) -> None:
    with pytest.raises(InvalidValue, match="is no text in the tasks or attributes"):
        JobspecTemplate(of_array("", "n", 0).raw, [path])


def test_the_texts_of_each_job_are_checked() -> None:
    template = JobspecTemplate(of_array("", "n", 0).raw, [["tasks", 0, "command", 0], CC])
    wrong = (["", "1"], "empty"), (["a\0", "1"], "NUL"), (["a", "\0"], "NUL"), (["a"], "1 texts for 2 paths")
    for texts, said in wrong:
        with pytest.raises(InvalidValue, match=said):
            template.job(texts, 0)
    with pytest.raises(LimitExceeded, match=f"the limit is {ARRAY_TEXTS_MAX}"):
        JobspecTemplate(of_array("", "n", 0).raw, [WORD] * (ARRAY_TEXTS_MAX + 1))
