"""Writes what is generated here: schemas/*.json, diagrams and tables in the pages, and the descriptors of *.proto.

Run `python rfc/generate.py` after changing a message class, a topic, a state table or the first paragraph of a file;
with `--check` it only says what is out of date (exit status 1). Generated text stands between `<!-- generated: NAME
-->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, get_args

import click
import msgspec

from fluxsched.cli.main import main as main_command
from fluxsched.cli.manual import subcommands
from fluxsched.core.role import Role
from fluxsched.jobs.states import TRANSITIONS, State
from fluxsched.leases import STEPS, LeaseState, Wish
from fluxsched.protocol.messages import common, flux, instance, jobs, resource
from fluxsched.protocol.messages import jobs as sched
from fluxsched.protocol.messages.common import Payload
from fluxsched.protocol.sessions import PLAIN, TYPED, AcquireState
from fluxsched.protocol.topics import COMMON, LOCAL_TOPICS, RIGHTS, TOPICS, Scope, Topic
from fluxsched.scheduler.session import SESSION, SessionState
from fluxsched.yunikorn.applications import APPLICATION_STATES, ApplicationState
from fluxsched.yunikorn.messages import RM_TRANSITIONS, RMState

HERE = Path(__file__).resolve().parent
FLUXSCHED = HERE.parent / "fluxsched"
SI = FLUXSCHED / "yunikorn"
DESCRIPTORS = SI / "si.desc"
MODULES: tuple[ModuleType, ...] = (common, flux, instance, jobs, resource, sched)
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_GENERATED = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def parts() -> dict[str, str]:
    """Name to text of everything that the pages contain and that is generated."""
    return {
        "command-map": command_map(),
        "packages": _mermaid(packages()),
        "files": file_tables(),
        "way-of-a-job": _mermaid(way(WAY_OF_A_JOB)),
        "way-of-a-drain": _mermaid(way(WAY_OF_A_DRAIN)),
        "acquire-typed": _mermaid(diagram(TYPED, AcquireState.IDLE)),
        "acquire-plain": _mermaid(diagram(PLAIN, AcquireState.IDLE)),
        "scheduler-session": _mermaid(diagram(SESSION, SessionState.IDLE)),
        "job-states": _mermaid(diagram(TRANSITIONS, State.NEW)),
        "lease-states": _mermaid(diagram(lease_rows(), LeaseState.WANTED)),
        "si-rm-states": _mermaid(diagram(*_rows(RM_TRANSITIONS, RMState.INIT))),
        "si-application-states": _mermaid(diagram(*_rows(_next_states(), ApplicationState.NEW))),
        "si-limits": limit_table(),
        "local-topics": topic_table(LOCAL_TOPICS),
        "roles": role_table(),
        "topics": topic_table(own_topics()),
    }


def command_map() -> str:
    """Return the files of `cli/` with the commands in each, as the tables of commands have them."""
    found: dict[str, list[str]] = {}
    for name, command in subcommands(main_command):
        inner = subcommands(command) if isinstance(command, click.Group) else [("", command)]
        for last, one in inner:
            if one.callback is not None:
                home = inspect.unwrap(one.callback).__module__.rpartition(".")[2]
                found.setdefault(home, []).append(f"{name} {last}".strip())
    lines = ["| file of `fluxsched/cli/` | commands |", "|---|---|"]
    lines += [f"| `{home}.py` | {', '.join(names)} |" for home, names in sorted(found.items())]
    return "\n".join(lines) + "\n"


def may_import() -> dict[str, set[str]]:
    """Return the packages that each may import, by tests/test_layers.py; from the bottom to the top."""
    body = ast.parse((HERE.parent / "tests/test_layers.py").read_text()).body
    [table] = [
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "MAY_IMPORT"
    ]
    found: dict[str, set[str]] = eval(compile(ast.Expression(table), "MAY_IMPORT", "eval"))
    return found


def packages() -> str:
    """Return the imports between packages that are allowed, less what others imply, as mermaid."""
    allowed = {
        package: {entry.partition(".")[0] for entry in entries} - {"errors"}
        for package, entries in may_import().items()
        if package not in ("", "__main__", "errors")
    }

    def reached(package: str) -> set[str]:
        return set().union(*({one} | reached(one) for one in allowed[package]))

    lines = ["flowchart TD"]
    for package, others in allowed.items():
        implied = set().union(*(reached(one) for one in others))
        lines += [f"    {package} --> {one}" for one in sorted(others - implied)]
    return "\n".join(lines) + "\n"


def file_tables() -> str:
    """Return a table for each package, from the bottom to the top: its files, each by the first paragraph in it."""
    lines = []
    for package in may_import():
        root = FLUXSCHED / package
        found = sorted(root.rglob("*.py"), key=lambda file: (len(file.parts), file)) if package else []
        rows = [
            f"| `{file.relative_to(root).with_suffix('')}` | {_opening(file)} |"
            for file in found
            if file.name != "__init__.py"
        ]
        if len(rows) > 1:
            lines += [f"### `{package}`", "", "| file | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _opening(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


# Who sends what to whom, and what happens there: a topic stands for its request, or with `<` for its answer; two states
# of a job for a transition, by its event
WAY_OF_A_JOB = (
    ("command", "job-manager.submit", "job manager"),
    ("job manager", State.NEW, State.DEPEND),
    ("job manager", State.DEPEND, State.PRIORITY),
    ("job manager", "on disk", "store"),
    ("job manager", "<job-manager.submit", "command"),
    ("job manager", State.PRIORITY, State.SCHED),
    ("job manager", "sched.alloc", "scheduler"),
    ("scheduler", "the policy starts it, the ledger takes its cores", "scheduler"),
    ("scheduler", "<sched.alloc", "job manager"),
    ("job manager", State.SCHED, State.RUN),
    ("job manager", "on disk", "store"),
    ("job manager", "launch", "executor"),
    ("executor", "ended, with status and usage", "job manager"),
    ("job manager", State.RUN, State.CLEANUP),
    ("job manager", "sched.free", "scheduler"),
    ("job manager", State.CLEANUP, State.INACTIVE),
    ("command", "job-manager.wait", "job manager"),
    ("job manager", "<job-manager.wait", "command"),
)
WAY_OF_A_DRAIN = (
    ("scheduler", "resource.acquire", "resource module"),
    ("resource module", "<resource.acquire", "scheduler"),
    ("command", "resource.drain", "resource module"),
    ("resource module", "event drain in the journal, on disk", "store"),
    ("resource module", "<resource.drain", "command"),
    ("resource module", "offline: the targets leave the pool, running jobs stay", "scheduler"),
    ("resource module", "<resource.watch", "viewers"),
    ("resource module", "<resource.journal", "viewers"),
    ("command", "resource.undrain", "resource module"),
    ("resource module", "event undrain in the journal, on disk", "store"),
    ("resource module", "<resource.undrain", "command"),
    ("resource module", "online: waiting jobs are tried again", "scheduler"),
)


def way(steps: tuple[tuple[str, Any, Any], ...]) -> str:
    """Return a sequence of messages as mermaid. Raises KeyError for a topic or a transition that is not there."""
    lines = ["sequenceDiagram"]
    for sender, step, receiver in steps:
        if isinstance(step, State):
            events = {after: event for event, after in TRANSITIONS[step].items() if not event.startswith("exception")}
            event = events[receiver]
            lines.append(f"    Note over {sender}: {step.name} -> {receiver.name} ({event})")
        elif step.lstrip("<") in TOPICS:
            topic = TOPICS[step.lstrip("<")]
            names = _names(topic.response, *topic.plain) if step.startswith("<") else f"{_names(topic.request)}"
            lines.append(
                f"    {sender}{'-->>' if step.startswith('<') else '->>'}{receiver}: "
                f"{step.lstrip('<')} {names.replace('`', '')}"
            )
        elif re.fullmatch(r"<?[a-z-]+\.[a-z-]+", step):
            raise KeyError(step)
        else:
            lines.append(f"    {sender}->>{receiver}: {step}")
    return "\n".join(lines) + "\n"


def diagram(table: Mapping[Any, Mapping[str, Any]], start: Any) -> str:
    """Return the table as a Mermaid state diagram; events with the same way share an arrow, states without any get an
    end.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}"]
    for state, row in table.items():
        ways: dict[Any, list[str]] = {}
        for event, after in row.items():
            ways.setdefault(after, []).append(event)
        lines += [f"    {state.name} --> {after.name}: {', '.join(events)}" for after, events in ways.items()]
        if all(after is state for after in ways):
            lines.append(f"    {state.name} --> [*]")
    return "\n".join(lines) + "\n"


def lease_rows() -> dict[LeaseState, dict[str, LeaseState]]:
    """How leases go on that are wanted, without what changes nothing."""
    wanted = [(state, wish) for state, wish in STEPS if wish is Wish.RUN]
    return {
        state: {event.value: step.state for event, step in STEPS[state, wish].items() if step.state is not state}
        for state, wish in wanted
    }


def own_topics() -> dict[str, Topic]:
    """Return the topics that are not common to all services, and those as NAME.x."""
    common = tuple(name.removeprefix("NAME") for name in COMMON)
    return {name: topic for name, topic in TOPICS.items() if not name.endswith(common)} | dict(COMMON)


def topic_table(topics: Mapping[str, Topic]) -> str:
    """Topics, one a line."""
    lines = ["| topic | request | response | |", "|---|---|---|---|"]
    for name, topic in topics.items():
        response = "none" if topic.response is None else _names(topic.response, *topic.plain)
        stream = ", a stream" if topic.streaming else ""
        lines.append(f"| `{name}` | {_names(topic.request)} | {response}{stream} | {topic.doc} |")
    return "\n".join(lines) + "\n"


SCOPES = {
    None: "", Scope.SEEN: ", for jobs that it may see", Scope.OWN: ", for jobs of its own",
    Scope.RUN: ", for jobs of its own",
}  # fmt: skip
SITE_USERS = "; with `run-as-user` each user"


def role_table() -> str:
    """Return the topics of each role, and for guests of which jobs."""
    lines = ["| least role | topics |", "|---|---|"]
    for role in Role:
        for scope, of in SCOPES.items():
            found = {name: right for name, right in RIGHTS.items() if right[:2] == (role, scope)}
            for also, kind in (("", (False, False)), (", and keepers", (True, False)), (SITE_USERS, (False, True))):
                names = sorted(name for name, right in found.items() if (right.is_keepers, right.is_users) == kind)
                if names:
                    lines.append(f"| {role}{also}{of} | {' '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"


def _rows(table: Mapping[tuple[Any, Any], Any], start: Any) -> tuple[dict[Any, dict[str, Any]], Any]:
    """Return a table of (state, event) as `diagram` wants it: each state that is in it has a row."""
    rows: dict[Any, dict[str, Any]] = {state: {} for state in type(start)}
    for (state, event), after in table.items():
        rows[state][event.value] = after
    return rows, start


def _next_states() -> dict[tuple[Any, Any], Any]:
    """Of applications, without the message that tells of each."""
    return {key: after for key, (after, _) in APPLICATION_STATES.items()}


INTERNAL = re.compile("LOOK|CACHED|KNOWN|_KEPT|GARBAGE|HEADS|STEPS|OFFERS|ELSEWHERE|SHOWN|DETAIL|TOLD|MOVES|REFUSED")
"""Names of limits of caches, searches and logs, of which a resource manager sees nothing."""


def limit_table() -> str:
    """Return the limits of the scheduler interface, from the constants `..._MAX` and the texts below them."""
    lines = ["| limit | | |", "|---|---|---|"]
    for path in sorted(SI.rglob("*.py")):
        body = ast.parse(path.read_text()).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            match node:
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                    if re.fullmatch(r"[A-Z_]+_MAX(_S)?", name) and not INTERNAL.search(name):
                        lines.append(f"| `{name}` | {_value_of(path, name)} | {_text_of(after)} |")
    return "\n".join(lines) + "\n"


def _value_of(path: Path, name: str) -> str:
    module = import_module(".".join(path.relative_to(HERE.parent).with_suffix("").parts))
    return f"{getattr(module, name):,}"


def _text_of(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return " ".join(text.split())
    return ""


def with_parts(text: str, made: Mapping[str, str]) -> str:
    """Return a page with its generated parts as they should be. Raises KeyError for a part that is not made."""
    return _GENERATED.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def descriptors() -> bytes:
    """Return the messages and services of the .proto files, compiled."""
    from grpc_tools import protoc  # the schemas are of use without it

    with TemporaryDirectory() as scratch:
        out = Path(scratch, "si.desc")
        sources = [path.name for path in sorted(HERE.glob("*.proto"))]
        well_known = files("grpc_tools") / "_proto"
        status = protoc.main(
            ["protoc", f"-I{HERE}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}", *sources]
        )
        if status:
            raise SystemExit(status)
        return out.read_bytes()


def outputs() -> dict[Path, bytes]:
    """Every file that this script writes, with what it should contain."""
    made = {HERE / "schemas" / name: render(content) for name, content in schemas().items()}
    shown = parts()
    pages = [HERE.parent / "CONTRIBUTING.md", *sorted(HERE.glob("*.md"))]
    made |= {page: with_parts(page.read_text(), shown) for page in pages}
    return {path: text.encode() for path, text in made.items()} | {DESCRIPTORS: descriptors()}


def main(arguments: list[str]) -> int:
    """Write or, with `--check`, compare. Returns the exit status."""
    made = outputs()
    stale = [path for path, content in made.items() if not path.exists() or path.read_bytes() != content]
    for path in stale:
        sys.stdout.write(f"{path.relative_to(HERE.parent)}\n")
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(made[path])
    return int(bool(stale) and "--check" in arguments)


def _mermaid(text: str) -> str:
    return f"```mermaid\n{text}```\n"


def _names(*kinds: object) -> str:
    found = [f"`{one.__name__}`" for kind in kinds for one in classes_of(kind)]
    return ", ".join(found) or "any object"


# ---- JSON Schemas of all messages: the classes are the truth, the schemas follow


def classes(module: ModuleType) -> list[type[Payload]]:
    """Return the message classes that `module` declares, in its order; not those that begin with `_`, their bases."""
    return [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, Payload)
        and found.__module__ == module.__name__
        and found is not Payload
        and not found.__name__.startswith("_")
    ]


def all_classes() -> list[type[Payload]]:
    """Return every message class."""
    return [found for module in MODULES for found in classes(module)]


def classes_of(kind: Any) -> tuple[type[Payload], ...]:
    """Return the message classes in a topic's `request` or `response`: one, those of a union, or none if free-form."""
    return tuple(
        found for found in (get_args(kind) or (kind,)) if isinstance(found, type) and issubclass(found, Payload)
    )


def schemas() -> dict[str, dict[str, Any]]:
    """File name to JSON Schema: one a module, its classes under `$defs`, and `topics.json`, which refers to them."""
    made = {f"{_name(module)}.json": _schema(module) for module in MODULES}
    own = {name: topic for name, topic in TOPICS.items() if not any(name.endswith(key[4:]) for key in COMMON)}
    made["topics.json"] = {name: _topic(topic) for name, topic in sorted({**own, **COMMON}.items())}
    return made


def render(schema: dict[str, Any]) -> str:
    """Return the text of a schema file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _schema(module: ModuleType) -> dict[str, Any]:
    _, defs = msgspec.json.schema_components(classes(module))
    for schema in defs.values():
        if "description" in schema:  # a docstring, whose indentation Python 3.13 removes and earlier versions keep
            schema["description"] = inspect.cleandoc(schema["description"])
    title = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
    return {"$schema": DIALECT, "title": title, "$defs": defs}


def _topic(topic: Topic) -> dict[str, Any]:
    made: dict[str, Any] = {"description": topic.doc, "request": _reference(topic.request)}
    if topic.response is not None:
        made["response"] = _reference(topic.response, *topic.plain)
    if topic.streaming:
        made["streaming"] = True
    return made


def _reference(*kinds: Any) -> Any:
    found = [
        {"$ref": f"{one.__module__.rpartition('.')[2]}.json#/$defs/{one.__name__}"}
        for kind in kinds
        for one in classes_of(kind)
    ]
    return {"type": "object"} if not found else found[0] if len(found) == 1 else {"anyOf": found}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
