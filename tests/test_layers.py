"""Layers and style, enforced: each rule reads the sources by `ast` and says where, what and what to do.

A rule is a function from one source to its violations, each a line `path:line: what is wrong and what to do`. Every
rule is also shown a snippet that breaks it, so that a rule that has gone blind fails here. Exceptions are named in the
tables below with their reason; an entry that nothing needs any more is a failure too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence

import pytest

from .broad_except import BROAD_EXCEPT
from .source import Source, imports, sources_below

TREES = ("fluxsched", "tests", "examples", "benchmarks", "rfc")

# Who may import whom inside fluxsched; every package may import itself. "" is fluxsched/__init__.py.
MAY_IMPORT = {
    "": {"client", "core", "errors", "instance"},
    "__main__": {"cli"},
    "policy": {"sched"},
    "plugin": {"config", "errors", "sched"},
    "errors": set(),
    "core": {"errors"},
    "protocol": {"core", "errors"},
    "resource": {"core", "errors"},
    "jobs": {"core", "errors", "protocol"},
    "sched": {"core", "errors"},
    "leases": {"core", "errors"},
    "transport": {"errors"},
    "system": {"core", "errors", "protocol"},
    "store": {"core", "errors", "jobs", "leases", "protocol", "resource", "system"},
    "messaging": {"core", "errors", "protocol", "store", "system", "transport"},
    "config": {"core", "errors", "jobs", "messaging", "resource", "sched", "system"},
    "history": {"core", "errors", "jobs", "protocol", "store", "system"},
    "client": {"core", "errors", "messaging", "protocol", "system", "transport"},
    "executor": {"core", "errors", "jobs", "messaging", "protocol", "system", "transport"},
    "engine": {"client", "config", "core", "errors", "executor", "messaging", "protocol", "system", "transport"},
    "scheduler": {"client", "config", "core", "errors", "messaging", "protocol", "sched", "system", "transport"},
    "services": {
        "client", "config", "core", "errors", "executor", "history", "jobs", "leases", "messaging", "protocol",
        "resource", "sched", "store", "system",
    },
    "clusters": {
        "client", "config", "core", "errors", "executor", "jobs", "leases", "messaging", "protocol", "services",
        "store", "system", "transport",
    },
    "flux": {
        "config", "core", "errors", "executor", "jobs", "messaging", "protocol", "resource", "sched", "scheduler",
        "services", "store", "system",
    },
    "yunikorn": {"core", "errors", "sched", "scheduler", "system"},
    "instance": {
        "client", "clusters", "config", "core", "engine", "errors", "executor", "flux", "history", "jobs",
        "messaging", "protocol", "resource", "services", "store", "system", "transport",
    },
    "sim": {
        "config", "core", "errors", "jobs", "protocol", "resource", "sched", "scheduler.session",
        "system.clock.RandomSource", "system.clock.seeded", "system.files",
    },
    "views": {"client", "core", "errors", "protocol", "system"},
    "screen": {"core", "errors", "protocol", "system", "views"},
    "web": {"core", "errors", "protocol", "system", "views"},
    "doctor": {
        "client", "config", "engine", "errors", "executor", "flux", "instance", "messaging", "sim", "store", "system",
    },
    "cli": {
        "client", "config", "core", "doctor", "engine", "errors", "flux", "instance", "messaging", "screen",
        "services", "sim", "system", "views", "web", "yunikorn",
    },
}  # fmt: skip
PURE = ("errors", "core", "protocol", "resource", "jobs", "leases", "sched")
PURE_FILES = ("fluxsched/scheduler/session.py", "fluxsched/yunikorn/tree/")
CLOCKS = {"random", "secrets", "time", "uuid"}
IMPURE = CLOCKS | {"asyncio", "logging", "os", "socket", "sqlite3", "subprocess", "threading", "zmq"}
ZMQ_HOME = ("fluxsched/transport/sockets.py", "fluxsched/transport/sockets.py")
CLOCK_HOME = "fluxsched/system/clock.py"

POLICY_SEES = (
    "fluxsched.core.", "fluxsched.errors.", "fluxsched.sched.fair.", "fluxsched.sched.policies.",
    "fluxsched.sched.policy.", "fluxsched.yunikorn.tree.",
)  # fmt: skip
POLICIES = (
    "fluxsched/sched/policies/", "fluxsched/yunikorn/tree/policy.py", "fluxsched/yunikorn/tree/preemption.py",
)  # fmt: skip
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)
INLINED = (ast.ListComp, ast.SetComp, ast.DictComp)
DOCSTRING = re.compile(r"""(\s*#.*\n|\s)*r?(\"{3}|\"|')\s*[^\s"']""")
PATCHED = {"sys.unraisablehook", "connection.text_factory", "policy.judge"}
"""Attributes of Python's objects, and of a policy, which is made by its name."""
NOTE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


Rule = Callable[[Source], Iterator[str]]


def layers(source: Source) -> Iterator[str]:
    """Packages import only what the table allows; siblings never import each other."""
    if source.package is None:
        return
    allowed = MAY_IMPORT.get(source.package)
    if allowed is None:
        yield source.at(1, f"package {source.package!r} is not in the table: say in MAY_IMPORT what it may import")
        return
    for line, name in imports(source):
        if name.startswith("."):
            yield source.at(line, f"relative import {name!r}: write it in full, so that the layer is seen")
        top, _, inner = name.partition(".")
        if top != "fluxsched" or inner == "__version__":
            continue
        package = inner.split(".")[0]
        if package != source.package and not any(f"{inner}.".startswith(f"{entry}.") for entry in allowed):
            yield source.at(
                line, f"{source.package or 'the top'} imports {name}: it may import {', '.join(sorted(allowed))}"
                " (pass the value in instead)"
            )  # fmt: skip


def purity(source: Source) -> Iterator[str]:
    """Pure packages know no clock, chance, process, thread, file descriptor or socket."""
    if source.package in PURE or source.path.startswith(PURE_FILES):
        for line, name in imports(source):
            if name.split(".")[0] in IMPURE:
                yield source.at(line, f"pure package imports {name}: take it as an argument or return an effect")


def policies(source: Source) -> Iterator[str]:
    """A policy sees core and its view, never the ledger."""
    if source.path.startswith(POLICIES):
        for line, name in imports(source):
            if name.startswith("fluxsched.") and not name.startswith(POLICY_SEES):
                yield source.at(line, f"a policy imports {name}: it may import core, policy, fair, yunikorn.tree")


def one_zmq(source: Source) -> Iterator[str]:
    """ZeroMQ is known in one file."""
    if source.package is not None and source.path not in ZMQ_HOME:
        for line, name in imports(source):
            if name.split(".")[0] == "zmq":
                yield source.at(line, f"imports {name}: only {' and '.join(ZMQ_HOME)} may; use its names")


def one_clock(source: Source) -> Iterator[str]:
    """Time and chance enter in one file."""
    if source.package is None or source.path == CLOCK_HOME:
        return
    for line, name in imports(source):
        if name.split(".")[0] in CLOCKS:
            yield source.at(line, f"imports {name}: only {CLOCK_HOME} may; take a Clock or `now_s`")
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("datetime" | "date"), attr="now" | "utcnow" | "today")):
                yield source.at(node.lineno, f"{ast.unparse(node.func)}() reads the clock: take a Clock or `now_s`")


def opening(source: Source) -> Iterator[str]:
    """Every file opens with a docstring."""
    if not DOCSTRING.match(source.text):  # outside of fluxsched this rule is the only one, and need not parse
        yield source.at(1, "no docstring at the top: say the file's concern and its law")


def _is_documented(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """True of a docstring, and of one that a compiled class is to keep (core/compiling.py)."""
    kept = [line for line in node.body if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "__doc__"]
    return bool(ast.get_docstring(node) or kept)


def docstrings(source: Source) -> Iterator[str]:
    """Public functions and classes of fluxsched say what they mean."""
    if source.package is None:
        return
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            overload = any("overload" in ast.unparse(line) for line in node.decorator_list)
            if not node.name.startswith("_") and not overload and not _is_documented(node):
                yield source.at(node.lineno, f"public {node.name} has no docstring: meaning, units, errors, source")


def no_print(source: Source) -> Iterator[str]:
    """Only commands talk to people on stdout."""
    if source.package not in (None, "cli"):
        for node in source.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield source.at(node.lineno, "print outside cli: log, or return the text")


def broad_except(source: Source) -> Iterator[str]:
    """Nothing swallows every exception; to clean up and raise again is fine."""
    for node, name in _handlers(source):
        caught = ast.unparse(node.type) if node.type else ""
        again = isinstance(node.body[-1], ast.Raise)
        if re.search(r"^$|\b(Base)?Exception\b", caught) and not again and f"{source.path}:{name}" not in BROAD_EXCEPT:
            yield source.at(node.lineno, f"`except {caught or ':'}` in {name}: name the errors, or raise again")


def _handlers(source: Source) -> Iterator[tuple[ast.ExceptHandler, str]]:
    """Every except clause of fluxsched, with the innermost function around it."""
    if source.package is None:
        return
    handlers = [node for node in source.nodes if isinstance(node, ast.ExceptHandler)]
    around: dict[ast.AST, str] = {}
    for _, function in source.functions if handlers else ():  # outer ones come first, inner ones overwrite
        around |= dict.fromkeys(ast.walk(function), function.name)
    for node in handlers:
        yield node, around.get(node, "the module")


def no_todo(source: Source) -> Iterator[str]:
    """Unfinished work belongs into an issue."""
    if not NOTE.search(source.text):
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and NOTE.search(token.string):
            yield source.at(token.start[0], f"{token.string.strip()!r}: do it, or open an issue and drop the note")


def no_magic(source: Source) -> Iterator[str]:
    """No metaclass, __init_subclass__, object.__new__, global or mutable default."""
    if source.package is None:
        return
    for node in source.nodes:
        match node:
            case ast.ClassDef(keywords=keywords) if any(keyword.arg == "metaclass" for keyword in keywords):
                yield source.at(node.lineno, f"class {node.name} has a metaclass: write the table out")
            case ast.FunctionDef(name="__init_subclass__" | "__new__"):
                yield source.at(node.lineno, f"{node.name}: use a plain constructor or a function")
            case ast.Attribute(ast.Name("object"), "__new__"):
                yield source.at(node.lineno, "object.__new__: use the constructor")
            case ast.Global():
                yield source.at(node.lineno, f"global {', '.join(node.names)}: pass it in, there are no singletons")
    for _, function in source.functions:
        for default in [*function.args.defaults, *filter(None, function.args.kw_defaults)]:
            if re.match(r"[\[{]|(list|dict|set|bytearray|deque|defaultdict)\(", ast.unparse(default)):
                yield source.at(default.lineno, f"{function.name} has a mutable default: use None or a frozen value")


def no_side_effects(source: Source) -> Iterator[str]:
    """To import a module of fluxsched does nothing but define names."""
    if source.package is None:
        return
    for node in source.tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        command = source.package == "cli" and isinstance(node, ast.Expr | ast.For)  # a click group is told its commands
        if isinstance(node, ast.Expr | ast.For | ast.While | ast.With | ast.Delete) and not text and not command:
            yield source.at(node.lineno, "code that runs at import: put it into a function")


def captured_names(source: Source) -> Iterator[str]:
    """No comprehension binds a name of its function that an inner function captures.

    Comprehensions are part of their function since Python 3.12 (PEP 709): the inner function may find the
    comprehension's variable there, or no value.
    """
    if source.package is None:
        return
    scopes = [node for node in source.nodes if isinstance(node, SCOPES)]
    comprehensions = [node for node in source.nodes if isinstance(node, INLINED)]
    for _, function in source.functions:
        if not _inside(function, scopes) or not _inside(function, comprehensions):
            continue
        inlined: list[tuple[int, str]] = []
        captured = set(_captured(function, frozenset(), inlined))
        for line, name in inlined:
            if name in captured:
                yield source.at(line, f"binds {name}, which an inner function captures: rename it")


def _inside(function: ast.FunctionDef | ast.AsyncFunctionDef, nodes: Sequence[ast.AST]) -> bool:
    """Return whether any of these nodes stands in a function."""
    begin, end = function.lineno, function.end_lineno or function.lineno
    return any(begin <= node.lineno <= end and node is not function for node in nodes)  # type: ignore[attr-defined]


def _captured(node: ast.AST, own: frozenset[str], inlined: list[tuple[int, str]]) -> Iterator[str]:
    """Yield the names that inner scopes of a function capture from it; `own` ones are those of comprehensions around.

    Adds (line, name) of each variable of a comprehension to `inlined`.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            yield from _loaded(child) - _bound(child) - own
            continue
        inner = own
        if isinstance(child, INLINED):
            names = {name for part in child.generators for name in _bound(part.target)}
            inlined += [(child.lineno, name) for name in sorted(names)]
            inner = own | names
        yield from _captured(child, inner, inlined)


def _loaded(scope: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(scope: ast.AST) -> set[str]:
    """Return the names of the arguments and variables of a scope."""
    stored = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(scope) if isinstance(node, ast.arg)}


def no_patching(source: Source) -> Iterator[str]:
    """No object sets a function as an attribute of another one: a constructor takes it, or a method that says so."""
    if source.package is None:
        return
    own = {node.name for _, node in source.functions if "property" not in map(ast.unparse, node.decorator_list)}
    local = {node.name for parent, node in source.functions if not isinstance(parent, ast.ClassDef)}
    for node in source.nodes:
        for target, value in _assigned(node):
            match value:
                case ast.Lambda() | ast.Call(func=ast.Name("partial")):
                    pass
                case ast.Attribute(ast.Name("self"), name) if name in own:
                    pass
                case ast.Name(name) if name in local:
                    pass
                case _:
                    continue
            match target:
                case ast.Attribute(ast.Name("self" | "cls")):
                    pass
                case ast.Attribute() if ast.unparse(target) not in PATCHED:
                    text = f"{ast.unparse(target)} is set from outside"
                    yield source.at(target.lineno, f"{text}: give it to a constructor")


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of an assignment with its value."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


RULES: tuple[Rule, ...] = (
    layers, purity, policies, one_zmq, one_clock, opening, docstrings, no_print, broad_except,
    no_todo, no_magic, no_side_effects, captured_names, no_patching,
)  # fmt: skip


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return sources_below(*TREES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule: Rule, sources: list[Source]) -> None:
    violations = [violation for source in sources for violation in rule(source)]
    assert not violations, f"{rule.__doc__}\n" + "\n".join(violations)


BREAKS = [
    (layers, "fluxsched/sched/a.py", "from fluxsched.jobs.job import Job"),
    (layers, "fluxsched/jobs/a.py", "def f():\n    import fluxsched.resource.drain"),
    (layers, "fluxsched/core/a.py", "from fluxsched.protocol import codec"),
    (layers, "fluxsched/transport/a.py", "from fluxsched.core.idset import Idset"),
    (layers, "fluxsched/instance/a.py", "from fluxsched.cli.base import main"),
    (layers, "fluxsched/cli/a.py", "from fluxsched.executor import local"),
    (layers, "fluxsched/cli/a.py", "from fluxsched import connect"),
    (layers, "fluxsched/cli/a.py", "from fluxsched.store.store import Store"),
    (layers, "fluxsched/sim/a.py", "from fluxsched.system.clock import SystemClock"),
    (layers, "fluxsched/sim/a.py", "from fluxsched.transport.zeromq import Client"),
    (layers, "fluxsched/errors.py", "from fluxsched.core.idset import Idset"),
    (layers, "fluxsched/jobs/a.py", "from .job import Job"),
    (layers, "fluxsched/extra/a.py", "import re"),
    (purity, "fluxsched/core/a.py", "import os.path"),
    (purity, "fluxsched/scheduler/session.py", "import asyncio"),
    (purity, "fluxsched/sched/a.py", "def f():\n    from time import monotonic"),
    (policies, "fluxsched/sched/policies/a.py", "from fluxsched.sched.ledger import Ledger"),
    (one_zmq, "fluxsched/transport/zeromq.py", "from zmq.backend import Socket"),
    (one_zmq, "fluxsched/instance/a.py", "import zmq"),
    (one_clock, "fluxsched/instance/a.py", "import time"),
    (one_clock, "fluxsched/cli/a.py", "from random import random"),
    (one_clock, "fluxsched/cli/a.py", "from datetime import datetime\nprint(datetime.now())"),
    (opening, "examples/a.py", "# a comment\nx = 1"),
    (docstrings, "fluxsched/jobs/a.py", "def f(): ..."),
    (docstrings, "fluxsched/jobs/a.py", "class A:\n    x = 1"),
    (no_print, "fluxsched/instance/a.py", "print(1)"),
    (broad_except, "fluxsched/instance/a.py", "try:\n    f()\nexcept:\n    pass"),
    (broad_except, "fluxsched/system/loop.py", "def other():\n try:\n  f()\n except Exception as exc:\n  g()"),
    (broad_except, "fluxsched/cli/a.py", "try:\n    f()\nexcept (OSError, BaseException):\n    pass"),
    (no_todo, "tests/a.py", "x = 1  # TO" "DO later"),
    (no_magic, "fluxsched/core/a.py", "class A(metaclass=B):\n    pass"),
    (no_magic, "fluxsched/core/a.py", "class A:\n    def __init_subclass__(cls): ..."),
    (no_magic, "fluxsched/core/a.py", "a = object.__new__(A)"),
    (no_magic, "fluxsched/core/a.py", "def f(a, *, b=[]): ..."),
    (no_magic, "fluxsched/core/a.py", "def f(a=dict()): ..."),
    (no_magic, "fluxsched/core/a.py", "def f():\n    global a\n    a = 1"),
    (no_side_effects, "fluxsched/core/a.py", "register(1)"),
    (no_side_effects, "fluxsched/core/a.py", "for a in b:\n    c[a] = 1"),
    (captured_names, "fluxsched/web/a.py", "def f(a):\n    b = {a: 1 for a in 'ab'}\n    return lambda: a, b"),
    (captured_names, "fluxsched/a.py", "def f(a):\n def g():\n  c = [a for a in a]\n  def h(): return a, c\n  h()"),
    (no_patching, "fluxsched/instance/a.py", "a.changed = lambda: None"),
    (no_patching, "fluxsched/instance/a.py", "class A:\n def f(self, b): b.c, b.d = self.f, 1"),
    (no_patching, "fluxsched/instance/a.py", "def f(a):\n def g(): ...\n a.failed = g"),
    (no_patching, "fluxsched/instance/a.py", "a.b.judge = partial(f, 1)"),
]  # fmt: skip

KEEPS = [
    (layers, "fluxsched/cli/a.py", "from fluxsched import __version__\nimport fluxsched.instance.launch"),
    (layers, "fluxsched/instance/a.py", "from fluxsched import protocol, store\nimport fluxsched.transport.base"),
    (layers, "examples/a.py", "import fluxsched.cli.main"),
    (purity, "fluxsched/instance/a.py", "import os"),
    (one_zmq, ZMQ_HOME[0], "import zmq"),
    (one_clock, CLOCK_HOME, "import time, random"),
    (one_clock, "fluxsched/cli/a.py", "from datetime import datetime\nprint(datetime.fromtimestamp(1.0))"),
    (docstrings, "fluxsched/jobs/a.py", "def _f(): ...\nclass A:\n    '''Said.'''\n    def f(self): ..."),
    (no_print, "fluxsched/cli/a.py", "print(1)"),
    (broad_except, "fluxsched/instance/a.py", "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    (no_todo, "tests/a.py", "x = 'TO" "DO'"),
    (no_magic, "fluxsched/core/a.py", "def f(a=(), b=None): ..."),
    (captured_names, "fluxsched/a.py", "def f(a):\n    b = [a for a in 'b']\n    return (a for a in b), lambda a: a"),
    (no_patching, "fluxsched/instance/a.py", "class A:\n def f(self, b): self.g, b.h, b.i = self.f, b.f, self.h"),
    (no_patching, "fluxsched/store/a.py", "connection.text_factory = lambda data: data"),
    (no_patching, "tests/a.py", "a.changed = lambda: None"),
    (no_side_effects, "fluxsched/core/a.py", "'''Doc.'''\nx = f(1)\n'''What x is.'''\nif x:\n    import y"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), BREAKS)
def test_a_rule_sees_what_breaks_it(rule: Rule, path: str, text: str) -> None:
    found = list(rule(Source(path, text)))
    assert len(found) == 1
    assert re.match(rf"{path}:\d+: .+", found[0])


@pytest.mark.parametrize(("rule", "path", "text"), KEEPS)
def test_a_rule_is_quiet_about_what_keeps_it(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_is_shown_a_violation() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(RULES)


def test_the_homes_of_zmq_and_time_are_used_and_no_exception_is_stale(sources: list[Source]) -> None:
    homes = [source for source in sources if source.path in (*ZMQ_HOME, CLOCK_HOME)]
    used = {source.path: {name.split(".")[0] for _, name in imports(source)} for source in homes}
    assert all("zmq" in used[home] for home in ZMQ_HOME)
    assert {"time", "random"} <= used[CLOCK_HOME]
    handlers = {f"{source.path}:{name}" for source in sources for _, name in _handlers(source)}
    assert BROAD_EXCEPT.keys() <= handlers, "an entry of BROAD_EXCEPT is no longer needed: delete it"
    assert {source.package for source in sources} - {None} == set(MAY_IMPORT)
