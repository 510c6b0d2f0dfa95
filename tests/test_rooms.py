"""Rules over whole packages: rooms import one way, files in no circle, no name of a class means two things,
and every limit is reached by a test.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .source import ROOT, Source, imports, sources_below

# Who may import whom among the rooms of a package; a room may import itself. A module at the top is a room, too.
ROOMS = {
    "protocol": {
        "messages": set(),
        "topics": {"messages"},
        "local_topics": {"messages", "topics"},
        "roles": set(),
        "schema": {"messages", "topics"},
        "framing": {"messages"},
        "sessions": {"framing", "messages"},
    },
    "resource": {
        "effects": set(),
        "journal": {"effects"},
        "state": {"effects", "journal"},
        "sessions": {"effects", "journal", "state"},
        "changes": {"effects", "journal", "sessions", "state"},
        "status": {"sessions", "state"},
        "module": {"changes", "effects", "journal", "sessions", "state", "status"},
    },
    "jobs": {
        "effects": set(),
        "holdings": set(),
        "queue": set(),
        "job": {"effects", "holdings", "queue"},
        "lifecycle": {"effects", "holdings", "job", "queue"},
        "query": {"job", "lifecycle", "queue"},
        "manager": {"effects", "holdings", "job", "lifecycle", "queue"},
    },
    "sched": {
        "accounts": set(),
        "fault_lines": set(),
        "option": set(),
        "loading": {"option"},
        "shape": set(),
        "pool": {"shape"},
        "usage": {"accounts", "pool", "shape"},
        "quotas": set(),
        "queue": {"accounts", "quotas", "shape", "usage"},
        "decisions": {"pool"},
        "effects": {"pool"},
        "stages": {"decisions"},
        "holdings": {"accounts", "pool", "quotas", "shape", "usage"},
        "ledger": {"accounts", "decisions", "holdings", "pool", "queue", "quotas", "usage"},
        "plan": {"decisions", "ledger", "pool", "queue", "shape"},
        "preemption": {"accounts", "holdings", "ledger", "pool", "shape"},
        "hooks": {"decisions", "fault_lines", "option", "pool", "queue", "shape"},
        "policy": {
            "accounts", "decisions", "ledger", "option", "plan", "pool", "preemption", "queue", "quotas", "stages",
            "usage",
        },
        "policies": {"accounts", "policy", "quotas"},
        "plugin_registry": {"hooks", "loading", "option"},
        "registry": {"hooks", "loading", "plugin_registry", "policies", "policy"},
        "engine": {
            "accounts", "decisions", "effects", "fault_lines", "holdings", "hooks", "ledger", "plan", "policy", "pool",
            "policies", "preemption", "queue", "quotas", "registry", "shape", "stages", "usage",
        },
    },
    "leases": {
        "states": set(),
        "lease": {"states"},
        "effects": {"lease"},
        "table": {"effects", "lease", "states"},
        "jobspec": set(),
        "mirror": {"jobspec"},
    },
    "adapters.si": {
        "api": set(),
        "config": set(),
        "messages": set(),
        "user_groups": set(),
        "uuids": set(),
        "shown": {"messages"},
        "machine": {"config", "messages"},
        "wire": {"machine", "messages"},
        "assembly": {"config", "machine", "user_groups", "uuids"},
        "quota": {"config", "user_groups"},
        "load": {"machine", "messages", "wire"},
        "rm": {"machine", "messages", "wire"},
        "in_process": {"api", "machine", "messages"},
        "service": {"assembly", "machine", "messages", "shown", "wire"},
    },
    "adapters.si.machine": {
        "effects": set(),
        "gangs": set(),
        "states": set(),
        "streams": {"effects", "states"},
        "applications": {"gangs"},
        "tables": {"applications"},
        "answers": {"applications", "effects", "tables"},
        "predicates": {"answers"},
        "bookings": {"answers", "applications", "gangs", "tables"},
        "partitions": {"answers", "bookings", "predicates", "tables"},
        "container_states": {"answers", "bookings", "tables"},
        "requests": {"answers", "applications", "bookings", "gangs", "tables"},
        "rm": {"answers", "bookings", "container_states", "effects", "requests", "states", "streams", "tables"},
        "machine": {"answers", "bookings", "effects", "partitions", "requests", "rm", "states", "streams"},
    },
    "runtime": {
        "system": set(),
        "access": {"system"},
        "config": {"access", "system"},
        "client": {"access", "system"},
        "storage": {"system"},
        "loop": {"storage", "system"},
        "messaging": {"access", "loop", "system"},
        "inventory": {"config", "system"},
        "metrics": {"client", "system"},
        "exec": {"loop", "messaging", "system"},
        "scheduler_process": {"access", "client", "config", "loop", "messaging", "system"},
        "history": {"loop", "storage", "system"},
        "services": {"config", "exec", "history", "loop", "messaging", "scheduler_process", "storage", "system"},
        "clusters": {"access", "client", "config", "exec", "loop", "messaging", "services", "system"},
        "flux_compat": {"exec", "loop", "messaging", "services", "system"},
        "instance": {
            "access", "client", "clusters", "config", "exec", "flux_compat", "history", "inventory", "loop",
            "messaging", "services", "storage", "system",
        },
    },
    "sim": {
        "policy_guard": set(),
        "traces": set(),
        "results": {"traces"},
        "engine": {"results", "traces"},
        "conformance": {"engine", "policy_guard"},
        "package": set(),
        "plugin": {"conformance", "policy_guard"},
        "policy": {"conformance", "policy_guard"},
        "commands": {"engine", "policy_guard", "results", "traces"},
    },
    "views": {
        "states": set(),
        "connection": set(),
        "machine": set(),
        "changes": {"machine"},
        "blocks": {"machine", "states"},
        "words": set(),
        "job_row": {"words"},
        "job_filter": {"job_row"},
        "timeline": {"words"},
        "subscription": {"changes"},
        "feeds": {"changes", "job_filter", "job_row", "machine", "states", "timeline", "words"},
        "topics": {"feeds"},
        "follower": {"changes", "connection", "feeds", "subscription", "topics"},
    },
    "web": {
        "access": set(),
        "bodies": set(),
        "wire": {"bodies"},
        "events": {"wire"},
        "pages": {"access", "wire"},
        "data": {"pages", "wire"},
        "actions": {"access", "pages", "wire"},
        "app": {"access", "actions", "data", "events", "pages", "wire"},
        "runner": {"access", "app", "events"},
        "standalone": set(),
    },
    "screen": {
        "arrange": set(),
        "keys": set(),
        "panes": {"arrange", "keys"},
        "settings": {"panes"},
        "follow": set(),
        "picture": {"panes"},
        "details": {"panes", "picture"},
        "actions": {"panes"},
        "parts": {"follow", "panes", "picture", "settings"},
        "commands": {"actions", "details", "keys", "panes", "parts", "picture"},
        "app": {"arrange", "commands", "follow", "keys", "panes", "picture", "settings"},
        "run": {"app", "panes", "settings"},
    },
    "cli": {
        "common": set(),
        "jobs": {"common"},
        "submission": {"common", "jobs"},
        "instance": {"common", "jobs", "submission"},
        "resource": {"common", "instance"},
        "si": {"common"},
        "studies": {"common"},
        "main": {"common", "instance"},
    },
}  # fmt: skip

LIMIT = re.compile(r"_(MAX|LIMIT)(_S)?$")

DOUBLES = {
    "Effect": "what a state machine has the shell do: each has its own, and they do not import each other",
    "Grow": "targets join a group (RFC 28's response), or a running job (a policy's decision)",
    "Shrink": "targets leave a group (RFC 28's response), or a running job (a policy's decision)",
}  # names with one meaning in several packages

FOREIGN_NAMES = "fluxsched/adapters/si/messages.py"  # the classes of another interface, by its names


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return sources_below("fluxsched")


def room_of(source: Source, package: str) -> str:
    return module_of(source).removeprefix(f"fluxsched.{package}").lstrip(".").split(".")[0]


def violations(source: Source, package: str) -> Iterator[str]:
    """Imports of a room that the table does not allow it."""
    table = ROOMS[package]
    room, top = room_of(source, package), f"fluxsched.{package}."
    for line, name in imports(source):
        other = name.removeprefix(top).split(".")[0]
        if name.startswith(top) and other not in {room, *table[room]}:
            yield source.at(line, f"{room} imports {name}: it may import {', '.join(sorted(table[room])) or 'none'}")


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_one_way(package: str, sources: list[Source]) -> None:
    inside = [source for source in sources if module_of(source).startswith(f"fluxsched.{package}.")]
    rooms = {room_of(source, package) for source in inside}
    assert rooms == ROOMS[package].keys(), "each room is in the table, and there"
    assert [found for source in inside for found in violations(source, package)] == []
    assert list(TopologicalSorter(ROOMS[package]).static_order())  # raises CycleError


@pytest.mark.parametrize(
    ("package", "path", "text"),
    [
        ("sched", "fluxsched/sched/pool/a.py", "from fluxsched.sched.engine.scheduler import Scheduler"),
        ("runtime", "fluxsched/runtime/loop/a.py", "def f():\n    import fluxsched.runtime.services.jobs.service"),
        ("adapters.si", "fluxsched/adapters/si/config/a.py", "from fluxsched.adapters.si.machine.rm import RM"),
    ],
)
def test_an_import_that_runs_back_up_is_seen(package: str, path: str, text: str) -> None:
    assert len(list(violations(Source(path, text), package))) == 1


def room_or_file(source: Source) -> str:
    return Path(source.path).stem


def module_of(source: Source) -> str:
    return source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def file_graph(sources: list[Source]) -> dict[str, set[str]]:
    """Which modules each module imports, anywhere in it: in a function and under TYPE_CHECKING counts, too."""
    modules = {module_of(source) for source in sources}
    graph: dict[str, set[str]] = {}
    for source in sources:
        names = [name for _, name in imports(source)]
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module_of(source)] = (found & modules) - {module_of(source)}
    return graph


@pytest.mark.parametrize("package", sorted({path.name for path in (ROOT / "fluxsched").iterdir() if path.is_dir()}))
def test_files_import_in_no_circle(package: str, sources: list[Source]) -> None:
    inside = [source for source in sources if source.package == package and room_or_file(source) != "__init__"]
    assert list(TopologicalSorter(file_graph(inside)).static_order()) or not inside  # raises CycleError


def test_a_circle_that_type_checking_hides_is_seen() -> None:
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fluxsched.sched.b import B"
    pair = [Source("fluxsched/sched/a.py", hidden), Source("fluxsched/sched/b.py", "from fluxsched.sched.a import A")]
    with pytest.raises(CycleError):
        list(TopologicalSorter(file_graph(pair)).static_order())


def defined(sources: list[Source]) -> dict[str, list[str]]:
    """Where each class and each alias of a type is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            match node:
                case ast.ClassDef(name):
                    found[name].append(source.path)
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                    if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                        found[name].append(source.path)
    return found


def doubles(sources: list[Source]) -> dict[str, list[str]]:
    return {name: paths for name, paths in defined(sources).items() if len(paths) > 1 and not name.startswith("_")}


def test_no_name_of_a_class_means_two_things(sources: list[Source]) -> None:
    sources = [source for source in sources if source.path != FOREIGN_NAMES]
    found = {name: paths for name, paths in doubles(sources).items() if name not in DOUBLES}
    assert found == {}, "rename the less natural one"
    assert doubles(sources).keys() >= DOUBLES.keys(), "an entry of DOUBLES is no longer needed: delete it"


def test_a_name_that_means_two_things_is_seen() -> None:
    one, other = "class Plan: ...\nCOUNT = 1", "Plan = tuple[int, int]\nCOUNT = 2"
    assert list(doubles([Source("fluxsched/sched/a.py", one), Source("fluxsched/jobs/a.py", other)])) == ["Plan"]


def limits(sources: list[Source]) -> dict[str, str]:
    """The named limits of fluxsched, and where each is."""
    found = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and not is_read(each)]
                found |= {name: source.at(node.lineno, name) for name in names if LIMIT.search(name)}
    return found


def is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def test_every_limit_is_named_by_a_test(sources: list[Source]) -> None:
    tests = " ".join(file.read_text() for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__))
    words = set(re.findall(r"\w+", tests))
    missing = [where for name, where in limits(sources).items() if name not in words]
    assert missing == [], "write a test that reaches the limit, and names it"


def test_a_limit_is_seen() -> None:
    text = "IDS_MAX = 1\nTIME_MAX_S: Final = 2.0\nx = IDS_MAX == 3\nA_LIMIT, B_LIMIT = 4, 5\n_MAXIMUM = 6"
    assert set(limits([Source("fluxsched/sched/a.py", text)])) == {"IDS_MAX", "TIME_MAX_S", "A_LIMIT", "B_LIMIT"}
