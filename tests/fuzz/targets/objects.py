"""Parsers of objects: R, jobspec, constraints, archives, and the queries of job listings."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluxsched.core import topology
from fluxsched.core.batch import parse_archive, script_file
from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import parse_amounts
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import rlite_ranks
from fluxsched.core.text import check_shape, load_object, toml_text
from fluxsched.jobs.query import parse_query
from fluxsched.messaging.memo import MSGPACK, JobspecMemo
from fluxsched.protocol import framing
from fluxsched.sched.fair.account_state import restore, saved
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.fair.usage import UsageBook
from fluxsched.scheduler.host import FREE
from tests.fuzz.target import Shape, Target, json_seeds, text_of
from tests.fuzz.targets.texts import SITE, VECTORS

RFC = Path(__file__).parents[3] / "rfc"
TOML_DEPTH = 64
NOW_S = 1_700_000_000.0


def _vectors(name: str, key: str) -> Iterator[Any]:
    """What stands under this key, anywhere in a file of vectors."""
    todo = [json.loads((VECTORS / name).read_text())]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
            if isinstance(found := value.get(key), dict):
                yield found
        elif isinstance(value, list):
            todo += value


def page_examples() -> Iterator[tuple[list[str], Any]]:
    """The messages on the pages of rfc/: the topics of each, and the object."""
    for page in sorted(RFC.glob("*.md")):
        for tags, text in re.findall(
            r"((?:<!-- message: [^\n]+ -->\n)+)```json\n(.*?)```", page.read_text(), re.DOTALL
        ):
            yield re.findall(r"<!-- message: (\S+) ", tags), json.loads(text)


R_PART = {
    "version": 1,
    "execution": {
        "R_lite": [
            {"rank": "0-3,7", "children": {"core": "0-3", "gpu": "0"}, "amounts": {"memory": 1024}},
            {"rank": "4", "children": {"core": "0-1,3"}},
        ],
        "nodelist": ["a[0-3]", "b[08-09]"],
        "starttime": 1.5,
        "expiration": 0,
        "properties": {"x": "0-1", "y@gpu": "4"},
        "nslots": 3,
    },
    "attributes": {"system": {"x": 1}},
}
JOBSPEC = {
    "version": 1,
    "resources": [
        {
            "type": "node",
            "count": {"min": 1, "max": 8, "operator": "*", "operand": 2},
            "exclusive": True,
            "with": [
                {
                    "type": "slot",
                    "label": "task",
                    "count": 1,
                    "with": [
                        {"type": "core", "count": 2},
                        {"type": "gpu", "count": 1},
                        {"type": "memory", "count": 4, "unit": "GiB"},
                    ],
                }
            ],
        }
    ],
    "tasks": [{"command": ["a", "b"], "slot": "task", "count": {"per_slot": 1}, "attributes": {}}],
    "attributes": {
        "system": {
            "duration": "1h",
            "cwd": "/",
            "environment": {"A": "b", "C": None},
            "queue": "debug",
            "bank": "x",
            "dependencies": [{"scheme": "afterok", "value": "ƒ2JL"}, {"scheme": "begin-time", "value": "1.5"}],
            "constraints": {"and": [{"hostlist": ["a[0-3]"]}, {"not": [{"properties": ["^x"]}]}]},
            "job": {"name": "x", "set": "s"},
            "preemptible-after": "1m",
            "fluxsched": {"requeue": 3},
            "shell": {"options": {"output": {"stdout": {"type": "file", "path": "out-{{id}}"}}, "mpi": "none"}},
            "exec": {"test": {"run_duration": "1ms"}},
            "files": {"script": script_file("#!/bin/sh\n")},
        }
    },
}


def _r(data: bytes) -> None:
    resources = ResourceSet.parse(data)
    assert ResourceSet.parse(resources.to_json()) == resources
    assert ResourceSet.parse(json.dumps(resources.to_json())) == resources
    assert rlite_ranks(resources.to_json()) == resources.ranks
    resources.summary()
    resources.rerank()
    some = resources.ranks.first(1)
    assert (resources.restrict(some) | resources.without(some)).ranks == resources.ranks


def _free(data: bytes) -> None:
    """Errors of `json` are not ours: such an R arrives as msgpack."""
    lite = framing.unpack(framing.pack({"id": 1, "R": json.loads(data)}), FREE)
    rlite_ranks({"execution": {"R_lite": lite.R.execution.R_lite}})


def _node(label: str, count: object, **more: object) -> dict[str, Any]:
    slot = {"type": "slot", "count": 2, "label": label, "with": [{"type": "core", "count": 2}]}
    return {"type": "node", "count": count, "exclusive": True, "with": [slot], **more}


PARTS = {
    "version": 999,
    "resources": [
        _node("lead", 1),
        _node("work", "4-10:2", constraints={"and": [{"properties": ["gpu"]}, {"ranks": ["0-7"]}]}),
        {"type": "matlab", "count": 1},
    ],
    "tasks": [
        {"command": ["a"], "slot": "lead", "count": {"per_slot": 1}},
        {"command": "b", "slot": "work", "count": {"per_resource": {"type": "core", "count": 1}}},
    ],
    "attributes": {"system": {"fluxsched": {"elastic": True, "max-hops": 4}, "constraints": {"hostlist": ["a[0-9]"]}}},
}


def _jobspec(data: bytes) -> None:
    jobspec = Jobspec.parse(data)
    assert Jobspec.parse(jobspec.to_json()) == jobspec
    jobspec.ntasks(1)
    assert [part.request for part in jobspec.parts] == list(jobspec.request.each_part)
    assert sum([part.request.least_nodes for part in jobspec.parts]) == jobspec.request.least_nodes
    for part in jobspec.parts:
        part.ntasks(part.request.least_slots)
    str(jobspec.request)


def _scheduling(data: bytes) -> None:
    found = load_object(data, "scheduling")
    ranks = Idset.span(0, 7)
    joined = topology.join_scheduling(found, SCHEDULING)
    parts = topology.parts_of(found, ranks)
    assert all(own <= ranks for own in parts.values())
    again = topology.parts_of(topology.put_parts(found, parts), ranks)
    assert again == parts
    if not topology.is_foreign(found):
        assert topology.parts_of(joined, EMPTY).keys() >= parts.keys()


SCHEDULING = {"writer": "fluxsched", "parts": {"lead": "100", "work": "101-102"}}


def _jobspec_memo(data: bytes) -> None:
    """Reading in parts accepts what reading as a whole does, and means the same."""
    payload = framing.pack(load_object(data, "jobspec"))
    memo = JobspecMemo(MSGPACK)
    made = memo.read(payload)
    assert made == Jobspec.parse(framing.unpack(payload, dict[str, Any]))
    assert memo.read(payload) == made


def _constraint(data: bytes) -> None:
    constraint = Constraint.parse(load_object(data, "constraint"))
    assert Constraint.parse(constraint.to_json()) == constraint
    found = constraint.match(SITE.ranks, {"x": SITE.ranks.first(2)}, lambda name: SITE.ranks_on([name])[0])
    assert found <= SITE.ranks


def _archive(data: bytes) -> None:
    for file in parse_archive(load_object(data, "files")):
        assert not file.path.startswith("/")
        assert ".." not in file.path.split("/")


def _amounts(data: bytes) -> None:
    amounts = parse_amounts(load_object(data, "amounts"))
    assert parse_amounts(dict(amounts)) == amounts


def _job_query(data: bytes) -> None:
    parse_query(load_object(data, "constraint"))


def _toml(data: bytes) -> None:
    table = load_object(data, "configuration")
    check_shape(table, "configuration", depth_limit=TOML_DEPTH, items_limit=len(data))
    read = tomllib.loads(toml_text(table))
    again = tomllib.loads(toml_text(read))
    assert json.dumps(again, sort_keys=True) == json.dumps(read, sort_keys=True)  # no NaN equals itself


def _state(data: bytes) -> None:
    accounts = UsageBook(FairSettings()).tree
    if restore(accounts, text_of(data), NOW_S) is None:
        assert restore(UsageBook(FairSettings()).tree, saved(accounts, NOW_S), NOW_S) is None


TARGETS = (
    Target("r", _r, lambda: json_seeds([R_PART, *_rs()]), Shape.JSON, words=("core", "gpu", "0-3", "memory", "rank")),
    Target(
        "free",
        _free,
        lambda: json_seeds([R_PART, *_rs()]),
        Shape.JSON,
        words=("core", "gpu", "rank", "children"),
        errors=(ValueError, RecursionError),
    ),
    Target(
        "jobspec",
        _jobspec,
        lambda: json_seeds(
            [JOBSPEC, PARTS, *_vectors("rfc14_jobspec.json", "jobspec"), *_vectors("rfc25_jobspec.json", "jobspec")]
        ),
        Shape.JSON,
        words=("node", "slot", "core", "per_slot", "total", "2-8:2:*", "afterok", "GiB", "lead", "work", "constraints"),
    ),
    Target(
        "scheduling",
        _scheduling,
        lambda: json_seeds([SCHEDULING, {"writer": "x"}, {**SCHEDULING, "topology": []}]),
        Shape.JSON,
        words=("writer", "fluxsched", "parts", "0-3", "lead"),
    ),
    Target(
        "jobspec-memo",
        _jobspec_memo,
        lambda: json_seeds([JOBSPEC, PARTS, *_vectors("rfc25_jobspec.json", "jobspec")]),
        Shape.JSON,
        words=("node", "slot", "core", "per_slot", "per_resource"),
    ),
    Target(
        "constraint",
        _constraint,
        lambda: json_seeds(
            [
                {
                    "and": [
                        {"or": [{"ranks": ["0-3"]}]},
                        {"not": [{"hostlist": ["a[0-1]"]}]},
                        {"properties": ["^x", "y"]},
                    ]
                },
                {},
            ]
        ),
        Shape.JSON,
        words=("and", "or", "not", "ranks", "hostlist", "properties", "^x"),
    ),
    Target(
        "archive",
        _archive,
        lambda: json_seeds(
            [
                {
                    "a/b": script_file("#!/bin/sh"),
                    "c": {"mode": 0o40700},
                    "d": {"mode": 0o120777, "data": "a", "encoding": "utf-8"},
                    "e": {"mode": 33188, "data": "QUJD", "encoding": "base64", "size": 3},
                    "f": {"mode": 33188, "data": {"x": 1}},
                }
            ]
        ),
        Shape.JSON,
        words=("..", "/", "base64", "utf-8", "blobvec", "mode", "data", "encoding", "size"),
    ),
    Target("amounts", _amounts, lambda: json_seeds([{"memory": 1024, "gpu-mem": 1}, {"a_b.c": 1}]), Shape.JSON),
    Target(
        "job-query",
        _job_query,
        lambda: json_seeds(
            [
                {"and": [{"states": ["active", 16]}, {"userid": [1]}, {"not": [{"name": ["x"]}]}]},
                {
                    "or": [
                        {"t_submit": [">=5"]},
                        {"id": [5, "ƒ2..ƒ3"]},
                        {"name-pattern": ["a*"]},
                        {"results": ["failed"]},
                    ]
                },
                {"and": [{"ranks": ["0-1"]}, {"hostlist": ["a0"]}, {"queue": ["x"]}, {"set": ["s"]}, {"array": [1]}]},
            ]
        ),
        Shape.JSON,
        words=("states", "results", "t_run", ">=1.5", "queue", "pending", "a[0-262143]", "hostlist"),
    ),
    Target(
        "toml-text",
        _toml,
        lambda: json_seeds([{"a": {"b": [1, 2.5, "x", True]}, "c": [{"d": 1}, {"e": {"f": []}}], "": 1}]),
        Shape.JSON,
    ),
    Target(
        "fair-state",
        _state,
        lambda: [
            saved(UsageBook(FairSettings()).tree, NOW_S).encode(),
            json.dumps(
                {
                    "version": 1,
                    "saved": NOW_S,
                    "signal": "decayed-usage",
                    "half-life": 604800.0,
                    "accounts": [[[], 3.0, 1.0], [["a"], 2.0, 1.0], [["a", "b"], 2.0, 1.0]],
                }
            ).encode(),
        ],
        Shape.JSON,
    ),
)


def _rs() -> Iterator[Any]:
    yield from (obj for _, obj in page_examples() if isinstance(obj, dict) and "execution" in obj)
    yield from _vectors("rfc20_r.json", "R")
