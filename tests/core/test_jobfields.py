"""Fields of jobs: parts, elastic sizes and bounds on hops, and how a job shares the machine."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.constraint import Constraint
from fluxsched.core.jobfields import (
    HOPS_MAX,
    NAME_CHARS_MAX,
    PARTS_VERSION,
    REQUEUE_MAX,
    RETRY_ON_CHARS_MAX,
    USUAL,
    Sharing,
    parse_sharing,
)
from fluxsched.core.jobspec import PARTS_MAX, Count, JobPart, Jobspec, Request
from fluxsched.errors import InvalidValue, LimitExceeded

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc14_jobspec.json").read_text())["cases"]
GPU = {"properties": ["gpu"]}


def node(label: str, count: object, cores: int = 1, **more: Any) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": cores}]}
    return {"type": "node", "count": count, "exclusive": True, "with": [slot], **more}


def task(label: str, command: str = "true", **count: Any) -> dict[str, Any]:
    return {"command": [command], "slot": label, "count": count or {"per_slot": 1}}


def jobspec(resources: list[Any], tasks: list[Any], version: int = PARTS_VERSION, **system: Any) -> dict[str, Any]:
    return {"version": version, "resources": resources, "tasks": tasks, "attributes": {"system": system}}


def two(**system: Any) -> dict[str, Any]:
    """The coordinator and its workers."""
    resources = [node("lead", 1), node("work", "4-10", 2, constraints=GPU)]
    return jobspec(resources, [task("work", "work", per_slot=2), task("lead", "lead")], **system)


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_rfc14_examples(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(InvalidValue) as refused:
            Jobspec.parse(case["jobspec"])
        assert str(refused.value).startswith(case["refused"])
    else:
        assert str(Jobspec.parse(case["jobspec"]).request) == case["request"]


# ---- several parts


def test_parts_are_read_in_the_order_of_resources() -> None:
    raw = two(constraints={"properties": ["ssd"]}, fluxsched={"elastic": True, "max-hops": 4})
    before = copy.deepcopy(raw)
    spec = Jobspec.parse(raw)
    ssd, gpu = Constraint.parse({"properties": ["ssd"]}), Constraint.parse(GPU)
    terms = {"exclusive": True, "max_hops": 4, "elastic": True}
    lead = Request(Count.fixed(1), cores=1, constraint=ssd, label="lead", **terms)
    work = Request(Count(4, 10), cores=2, constraint=Constraint("and", (ssd, gpu)), label="work", **terms)
    assert spec.parts == (
        JobPart("lead", lead, ("lead",), 1, None, None),
        JobPart("work", work, ("work",), 2, None, None),
    )
    request = spec.request
    assert request == Request(Count(5, 11), cores=1, constraint=ssd, parts=(lead, work), **terms)
    assert request.each_part == (lead, work)
    assert (request.least_nodes, request.least_slots, request.least_cores, request.least_gpus) == (5, 5, 9, 0)
    assert (spec.command, spec.ntasks(5), [part.ntasks(6) for part in spec.parts]) == (("lead",), 9, [6, 12])
    assert spec.to_json() == before
    assert hash(request) == hash(Jobspec.parse(json.dumps(before)).request)
    assert str(request) == (
        "lead: 1 exclusive node of 1 core within 4 hops with ssd; "
        "work: 4-10 exclusive nodes of 2 cores within 4 hops with ssd and gpu"
    )


def test_a_job_of_one_part_is_that_itself() -> None:
    spec = Jobspec.from_command(["a", "b"], ntasks=4, nodes=2)
    assert spec.parts == (JobPart("task", spec.request, ("a", "b"), 1, None, None),)
    assert (spec.request.parts, spec.request.each_part) == ((), (spec.request,))
    one = jobspec([node("only", 2, constraints=GPU)], [task("only")], constraints={"properties": ["ssd"]})
    assert str(Jobspec.parse(one).request) == "2 exclusive nodes of 1 core with ssd and gpu"
    assert Jobspec.parse(one).request.parts == ()


def test_a_part_without_end_leaves_the_whole_without_end() -> None:
    spec = Jobspec.parse(jobspec([node("a", "2+"), node("b", 3)], [task("a"), task("b")]))
    assert spec.request.nodes == Count(5, None)


def test_what_belongs_to_no_node_is_the_jobs() -> None:
    resources = [node("a", 1), {"type": "matlab", "count": 2}, node("b", 1)]
    request = Jobspec.parse(jobspec(resources, [task("a"), task("b")])).request
    assert (request.shared, [part.shared for part in request.parts]) == ((("matlab", 2),), [(), ()])
    assert str(request).endswith("b: 1 exclusive node of 1 core and 2 matlab")


def several(n: int) -> dict[str, Any]:
    return jobspec([node(f"p{at}", 1) for at in range(n)], [task(f"p{at}") for at in range(n)])


def test_a_job_has_at_most_so_many_parts() -> None:
    assert len(Jobspec.parse(several(PARTS_MAX)).parts) == PARTS_MAX
    with pytest.raises(LimitExceeded, match=f"resources has {PARTS_MAX + 1} parts, the limit is {PARTS_MAX}: join"):
        Jobspec.parse(several(PARTS_MAX + 1))


SLOT = node("b", 1)["with"][0]
A_AND_B = [node("a", 1), node("b", 1)]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (
            jobspec(A_AND_B, [task("a"), task("b")], version=1),
            r"resources has 2 parts, version 1 has one: set version to 999",
        ),
        (jobspec(A_AND_B, [task("a")], version=2), r"version must be 1 \(RFC 25\), or 999 for several parts .*, not 2"),
        (
            jobspec([node("a", 1), node("b", 1, exclusive=False)], [task("a"), task("b")]),
            r"resources\[1\]\.exclusive: each of several parts has whole nodes: set it to true",
        ),
        (
            jobspec([node("a", 1), SLOT], [task("a"), task("b")]),
            r"resources\[1\]\.type: a slot cannot be one of several parts: put it into a node",
        ),
        (
            jobspec([node("a", 1), node("b", 1, **{"with": [{**SLOT, "count": "1-2"}]})], [task("a"), task("b")]),
            r"resources\[1\]\.with\[0\]\.count: 1-2 must be one number",
        ),
        (
            jobspec([node("a", 1), node("a", 1)], [task("a"), task("a")]),
            r"resources\[1\]\.with\[0\]\.label: 'a' is that of another slot: give each its own",
        ),
        (
            jobspec([node("a", 1), node("b\n", 1)], [task("a"), task("b\n")]),
            r"resources\[1\]\.with\[0\]\.label: .* is not a name",
        ),
        (
            jobspec([node("a", 1), node("b" * (NAME_CHARS_MAX + 1), 1)], []),
            rf"resources\[1\]\.with\[0\]\.label: {NAME_CHARS_MAX + 1} characters, the limit is {NAME_CHARS_MAX}",
        ),
        (
            jobspec([node("a", 1), node("b", 1, constraints={"near": ["x"]})], [task("a"), task("b")]),
            r"resources\[1\]\.constraints: .*near",
        ),
        (
            jobspec([node("a", 1, constraints=GPU)], [task("a")], version=1),
            r"resources\[0\]: unknown constraints",
        ),
        (jobspec(A_AND_B, [task("a"), task("b"), task("a")]), r"tasks\[2\]\.slot: 'a' has an entry already: give one"),
        (jobspec(A_AND_B, [task("a"), task("c")]), r"tasks\[1\]\.slot: 'c' is not the label of a slot: .* 'a', 'b'"),
        (jobspec(A_AND_B, [task("a")]), r"tasks has no entry for the slot 'b': give one for each slot"),
        (jobspec(A_AND_B, [task("a"), "b"]), r"tasks must be a list of objects, one for each slot"),
        (jobspec(A_AND_B, [task("a"), task("b", per_slot=0)]), r"tasks\[1\]\.count\.per_slot must be an integer of 1"),
        (jobspec(A_AND_B, [task("a"), {**task("b"), "command": []}]), r"tasks\[1\]\.command must be a list of strings"),
        (jobspec([node("a", 1)], [task("a"), task("a")]), r"tasks must be a list of one object"),
        (jobspec([node("a", 1)], [task("b")]), r"tasks\[0\]\.slot: 'b' is not the label of the slot, 'a'"),
        (jobspec([], []), r"resources must be a list of one vertex"),
        ({**two(), "resources": "node"}, r"resources must be a list"),
    ],
)
def test_wrong_parts_are_refused(wrong: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{error}"):
        Jobspec.parse(wrong)


# ---- elastic, and hops


def test_an_elastic_job_keeps_its_range_open() -> None:
    spec = Jobspec.from_command(["work"], nodes="4-10:2", exclusive=True, elastic=True, max_hops=2)
    assert (spec.request.elastic, spec.request.max_hops) == (True, 2)
    assert str(spec.request) == "4-10:2 exclusive nodes of 1 core within 2 hops"
    assert spec.to_json()["attributes"]["system"]["fluxsched"] == {"elastic": True, "max-hops": 2}
    assert Jobspec.parse(two(fluxsched={"elastic": True})).request.elastic
    plain = Jobspec.from_command(["work"], nodes="4-10").request
    assert (plain.elastic, plain.max_hops) == (False, None)
    assert plain != Jobspec.from_command(["work"], nodes="4-10", elastic=True).request


ELASTIC = r"attributes\.system\.fluxsched\.elastic: "


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"nodes": 4}, "the job asks for 4 nodes: give a range, such as 4-10"),
        ({"ntasks": 4}, "the job asks for slots, not for nodes: give a range of nodes, such as 4-10"),
    ],
)
def test_elastic_without_a_range_is_refused(asked: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidValue, match=ELASTIC + error):
        Jobspec.from_command(["work"], elastic=True, **asked)


def test_elastic_with_parts_of_a_fixed_size_is_refused() -> None:
    with pytest.raises(InvalidValue, match=ELASTIC + "the job asks for 2 nodes in parts of a fixed size: give a range"):
        Jobspec.parse(jobspec([node("a", 1), node("b", 1)], [task("a"), task("b")], fluxsched={"elastic": True}))


def test_elastic_with_slots_that_are_a_range_is_refused() -> None:
    wrong = node("a", "2-4", **{"with": [{**SLOT, "label": "a", "count": "1-2"}]})
    with pytest.raises(InvalidValue, match=ELASTIC + "1-2 slots a node: give one number, only the nodes stay open"):
        Jobspec.parse(jobspec([wrong], [task("a")], fluxsched={"elastic": True}))


@pytest.mark.parametrize("elastic", [1, "yes", None])
def test_elastic_is_true_or_false(elastic: object) -> None:
    with pytest.raises(InvalidValue, match=ELASTIC + ".* is not true or false"):
        Jobspec.parse(two(fluxsched={"elastic": elastic}))


@pytest.mark.parametrize("hops", [0, 1, 3, -2, 2.0, "2", True, HOPS_MAX + 2, 10**300])
def test_max_hops_is_an_even_number(hops: object) -> None:
    with pytest.raises(InvalidValue, match=rf"max-hops: .* is not an even number within 2-{HOPS_MAX}: 2 is under one"):
        Jobspec.parse(two(fluxsched={"max-hops": hops}))
    assert Jobspec.parse(two(fluxsched={"max-hops": HOPS_MAX})).request.max_hops == HOPS_MAX


# How a job shares the machine: what is read of its attributes, and what is refused.


def saying(**system: Any) -> Jobspec:
    raw = Jobspec.from_command(["true"]).raw
    return Jobspec.parse({**raw, "attributes": {"system": system}})


def test_a_job_that_says_nothing_has_the_usual_terms() -> None:
    assert saying().sharing is USUAL
    assert Sharing(bank=None, preemptible_after_s=None, requeue=0, job_set=None) == USUAL


def test_all_is_read() -> None:
    found = saying(
        **{"bank": "physics", "preemptible-after": 0, "job": {"set": "night"}, "fluxsched": {"requeue": REQUEUE_MAX}}
    ).sharing
    assert found == Sharing("physics", 0.0, REQUEUE_MAX, "night")


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, "60s", True])
def test_a_wrong_preemptible_after_is_refused(after: object) -> None:
    with pytest.raises(InvalidValue, match=r"attributes\.system\.preemptible-after must be a number .* at once"):
        saying(**{"preemptible-after": after})


@pytest.mark.parametrize("times", [-1, REQUEUE_MAX + 1, 1.0, "3", True])
def test_a_wrong_requeue_is_refused(times: object) -> None:
    with pytest.raises(InvalidValue, match=rf"attributes\.system\.fluxsched\.requeue: .* within 0-{REQUEUE_MAX}"):
        saying(fluxsched={"requeue": times})


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "", 3, "x" * (NAME_CHARS_MAX + 1)])
def test_a_bank_and_a_set_have_names_that_can_be_shown(name: object) -> None:
    with pytest.raises(InvalidValue, match=r"attributes\.system\.bank"):
        saying(bank=name)
    with pytest.raises(InvalidValue, match=r"attributes\.system\.job\.set"):
        saying(job={"set": name})


def test_what_a_command_says() -> None:
    assert Jobspec.from_command(["true"]).sharing is USUAL
    said = Jobspec.from_command(
        ["true"], name="mine", bank="physics", preemptible_after_s=0, requeue=REQUEUE_MAX, job_set="night"
    )
    assert (said.sharing, said.job_name) == (Sharing("physics", 0.0, REQUEUE_MAX, "night"), "mine")
    with pytest.raises(InvalidValue, match=r"preemptible-after must be .*, not nan; 0 means at once"):
        Jobspec.from_command(["true"], preemptible_after_s=math.nan)


def retry(text, requeue=1):
    return parse_sharing({"fluxsched": {"requeue": requeue, "retry-on": text}}).retry_on


def test_ends_after_which_a_job_is_tried_again_are_exit_codes_of_a_shell():
    assert str(retry("exit:75,signal:9")) == "75,137"
    assert str(retry("exit:1-3,exit:5,signal:1-2")) == "1-3,5,129-130"
    longest = ",".join(["exit:1"] * (RETRY_ON_CHARS_MAX // 7 + 1))[:RETRY_ON_CHARS_MAX]
    assert str(retry(longest.rpartition(",")[0])) == "1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("75", "'75' names no end: use exit:CODE or signal:NUMBER"),
        ("exit:", "'exit:': the numbers of exit are 1-255"),
        ("exit:0", "'exit:0': the numbers of exit are 1-255"),
        ("exit:256", "'exit:256': the numbers of exit are 1-255"),
        ("signal:65", "'signal:65': the numbers of signal are 1-64"),
        ("exit:x", "'exit:x': "),
        ("exit:1,", "'' names no end"),
        ("exit:1" + ",exit:1" * RETRY_ON_CHARS_MAX, f"characters, the limit is {RETRY_ON_CHARS_MAX}: use ranges"),
    ],
)
def test_other_ends_are_refused(text, told):
    with pytest.raises(InvalidValue) as caught:
        retry(text)
    assert told in str(caught.value)
    assert str(caught.value).startswith("attributes.system.fluxsched.retry-on")


@pytest.mark.parametrize(("key", "value"), [("retry-on", "exit:1"), ("retry-pause", 5)])
def test_a_retry_without_a_number_of_attempts_is_a_mistake(key, value):
    with pytest.raises(InvalidValue, match=f"{key} is of use with requeue alone: say how often"):
        parse_sharing({"fluxsched": {key: value}})
    with pytest.raises(InvalidValue, match=r"fluxsched\.retry-pause must be a number of seconds"):
        parse_sharing({"fluxsched": {"requeue": 1, "retry-pause": "soon"}})
