"""The rooms inside packages: imports run one way, and a folder is seen at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from .test_layers import ROOT, Source, imports

FOLDER_FILES_MAX = 12  # more are not seen at a glance, unless they are all of one kind

# Who may import whom among the rooms of a package; a room may import itself. A module at the top is a room, too.
ROOMS = {
    "protocol": {
        "messages": set(),
        "topics": {"messages"},
        "local_topics": {"messages", "topics"},
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
    "sched": {
        "pool": set(),
        "queue": set(),
        "decisions": {"pool"},
        "effects": {"pool"},
        "ledger": {"decisions", "pool", "queue"},
        "plan": {"decisions", "ledger", "pool", "queue"},
        "policy": {"decisions", "plan", "pool", "queue"},
        "policies": {"policy"},
        "registry": {"policies", "policy"},
        "engine": {"decisions", "effects", "ledger", "plan", "policy", "pool", "queue", "registry"},
    },
    "runtime": {
        "system": set(),
        "config": {"system"},
        "client": {"system"},
        "loop": {"system"},
        "messaging": {"loop", "system"},
        "inventory": {"config", "system"},
        "exec": {"loop", "system"},
        "scheduler_process": {"loop", "messaging", "system"},
        "services": {"config", "exec", "loop", "messaging", "scheduler_process", "system"},
        "flux_compat": {"exec", "loop", "messaging", "services", "system"},
        "instance": {
            "client", "config", "exec", "flux_compat", "inventory", "loop", "messaging", "services", "system",
        },
    },
    "sim": {
        "policy_guard": set(),
        "traces": set(),
        "results": {"traces"},
        "engine": {"results", "traces"},
        "conformance": {"engine", "policy_guard"},
        "plugin": {"conformance", "policy_guard"},
        "commands": {"engine", "policy_guard", "results", "traces"},
    },
    "cli": {
        "common": set(),
        "jobs": {"common"},
        "submission": {"common", "jobs"},
        "instance": {"common", "submission"},
        "resource": {"common", "instance"},
        "studies": {"common"},
        "main": {"common", "instance"},
    },
}  # fmt: skip

FULL_FOLDERS = {
    "fluxsched/core": "values: one parser and one printer each",
}  # folder -> what all its files are


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    files = sorted((ROOT / "fluxsched").rglob("*.py"))
    return [Source(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files]


def room_of(source: Source) -> str:
    return source.path.removesuffix(".py").split("/")[2]


def violations(source: Source) -> Iterator[str]:
    """Imports of a room that the table does not allow it."""
    table = ROOMS[source.package or ""]
    room, top = room_of(source), f"fluxsched.{source.package}."
    for line, name in imports(source):
        other = name.removeprefix(top).split(".")[0]
        if name.startswith(top) and other not in {room, *table[room]}:
            yield source.at(line, f"{room} imports {name}: it may import {', '.join(sorted(table[room])) or 'none'}")


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_one_way(package: str, sources: list[Source]) -> None:
    inside = [source for source in sources if source.package == package and room_of(source) != "__init__"]
    assert {room_of(source) for source in inside} == ROOMS[package].keys(), "each room is in the table, and there"
    assert [found for source in inside for found in violations(source)] == []
    assert list(TopologicalSorter(ROOMS[package]).static_order())  # raises CycleError


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("fluxsched/sched/pool/a.py", "from fluxsched.sched.engine.scheduler import Scheduler"),
        ("fluxsched/runtime/loop/a.py", "def f():\n    import fluxsched.runtime.services.jobs.service"),
    ],
)
def test_an_import_that_runs_back_up_is_seen(path: str, text: str) -> None:
    assert len(list(violations(Source(path, text)))) == 1


def test_a_folder_is_seen_at_a_glance(sources: list[Source]) -> None:
    files = Counter(str(Path(source.path).parent) for source in sources if room_or_file(source) != "__init__")
    full = {folder for folder, count in files.items() if count > FOLDER_FILES_MAX}
    assert full == FULL_FOLDERS.keys(), "sort into rooms what is above the limit; delete what is no longer needed"


def room_or_file(source: Source) -> str:
    return Path(source.path).stem
