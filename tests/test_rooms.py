"""Rules over whole packages: folders and files import in no circle, no name of a class means two things, and every
limit is reached by a test. Which package may import which is in test_layers.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

from .source import ROOT, Source, imports, sources_below

PACKAGES = sorted({path.name for path in (ROOT / "fluxsched").iterdir() if any(path.glob("*.py"))})
LIMIT = re.compile(r"_(MAX|LIMIT)(_S)?$")

DOUBLES = {
    "Effect": "what a state machine has the shell do: each has its own, and they do not import each other",
    "Executor": "what runs an instance's jobs, or for a Python program jobs as concurrent.futures has them",
    "Grow": "targets join a group (RFC 28's response), or a running job (a policy's decision)",
    "Shrink": "targets leave a group (RFC 28's response), or a running job (a policy's decision)",
}  # names with one meaning in several packages

FOREIGN_NAMES = "fluxsched/yunikorn/messages.py"  # the classes of another interface, by its names


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return sources_below("fluxsched")


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


@pytest.mark.parametrize("package", PACKAGES)
def test_files_import_in_no_circle(package: str, sources: list[Source]) -> None:
    inside = [source for source in sources if source.package == package and room_or_file(source) != "__init__"]
    assert list(TopologicalSorter(file_graph(inside)).static_order()) or not inside  # raises CycleError


def room_graph(sources: list[Source]) -> dict[str, set[str]]:
    """Return which rooms of a package, folders and files at its top, each room imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, imported in file_graph(sources).items():
        room = module.split(".")[2]
        graph[room] |= {name.split(".")[2] for name in imported} - {room}
    return graph


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_in_no_circle(package: str, sources: list[Source]) -> None:
    inside = [source for source in sources if source.package == package and room_or_file(source) != "__init__"]
    assert list(TopologicalSorter(room_graph(inside)).static_order()) or not inside  # raises CycleError


def test_a_circle_of_rooms_without_one_of_files_is_seen() -> None:
    texts = {
        "pool/a": "from fluxsched.sched.plan.b import B", "plan/b": "",
        "plan/c": "def f():\n    import fluxsched.sched.pool.a",
    }  # fmt: skip
    sources = [Source(f"fluxsched/sched/{name}.py", text) for name, text in texts.items()]
    assert list(TopologicalSorter(file_graph(sources)).static_order())
    with pytest.raises(CycleError):
        list(TopologicalSorter(room_graph(sources)).static_order())


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
    """The named limits of fluxsched, and where each is: constants, and fields of classes called `...Limits`."""
    found = {}
    for source in sources:
        body = source.tree.body
        fields = [each.body for each in body if isinstance(each, ast.ClassDef) and each.name.endswith("Limits")]
        for node in chain(body, *fields):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and not is_read(each)]
                found |= {name: source.at(node.lineno, name) for name in names if LIMIT.search(name.upper())}
    return found


def is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def test_every_limit_is_named_by_a_test(sources: list[Source]) -> None:
    tests = " ".join(file.read_text() for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__))
    words = set(re.findall(r"\w+", tests))
    missing = [where for name, where in limits(sources).items() if words.isdisjoint((name, name.lower()))]
    assert missing == [], "write a test that reaches the limit, and names it, or the argument for it"


def test_a_limit_is_seen() -> None:
    text = "IDS_MAX = 1\nTIME_MAX_S: Final = 2.0\nx = IDS_MAX == 3\nA_LIMIT, B_LIMIT = 4, 5\n_MAXIMUM = 6\n"
    text += "class XLimits:\n    xs_max: int = 7\nclass Job:\n    cores_max: int = 8"
    found = limits([Source("fluxsched/sched/a.py", text)])
    assert set(found) == {"IDS_MAX", "TIME_MAX_S", "A_LIMIT", "B_LIMIT", "xs_max"}
