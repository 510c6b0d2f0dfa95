"""JSON Schemas of all messages, generated from their classes: the classes are the truth, the schemas follow.

Law: no I/O here; `rfc/generate.py` writes what these functions return, and a test compares.
"""

from __future__ import annotations

import inspect
import json
from types import ModuleType
from typing import Any, get_args

import msgspec

from fluxsched.protocol.messages import common, flux, instance, jobs, resource, sched
from fluxsched.protocol.messages.common import Payload
from fluxsched.protocol.topics import COMMON, TOPICS, Topic

MODULES: tuple[ModuleType, ...] = (
    sched, resource, instance, sched, common, flux, flux, instance, jobs, instance, instance, instance, jobs,
    instance, resource, instance, instance,
)  # fmt: skip
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def classes(module: ModuleType) -> list[type[Payload]]:
    """The message classes that `module` declares, in its order; not those that begin with `_`, their bases."""
    return [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Payload) and found.__module__ == module.__name__
        and found is not Payload and not found.__name__.startswith("_")
    ]


def all_classes() -> list[type[Payload]]:
    """Return every message class."""
    return [found for module in MODULES for found in classes(module)]


def classes_of(kind: Any) -> tuple[type[Payload], ...]:
    """The message classes in a topic's `request` or `response`: one, those of a union, or none if it is free-form."""
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
    """The text of a schema file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _schema(module: ModuleType) -> dict[str, Any]:
    _, defs = msgspec.json.schema_components(classes(module))
    for schema in defs.values():
        if "description" in schema:  # a docstring, whose indentation Python 3.13 removes and earlier versions keep
            schema["description"] = inspect.cleandoc(schema["description"])
    title = (module.__doc__ or "").partition("\n")[0]
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
