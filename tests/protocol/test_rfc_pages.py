"""The pages of rfc/: every example parses as its class, every topic and class is there, generated text is current."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
import pytest

from fluxsched.errors import RemoteProtocolError
from fluxsched.messaging.peers import PeerLimits
from fluxsched.protocol import framing
from fluxsched.protocol.messages.common import Empty
from fluxsched.protocol.topics import COMMON, LOCAL_TOPICS, SERVICES, TOPICS

from .pages import RFC, generate

PAGES = sorted(RFC.glob("*.md"))
_EXAMPLE = re.compile(r"((?:<!-- message: [^\n]+ -->\n)+)```json\n(.*?)```", re.DOTALL)
_TAG = re.compile(r"<!-- message: (\S+) (request|response) (\w+) -->")


class Example(NamedTuple):
    topic: str
    direction: str
    name: str
    text: str


def _examples() -> list[Example]:
    return [
        Example(*tag, text)
        for page in PAGES
        for tags, text in _EXAMPLE.findall(page.read_text())
        for tag in _TAG.findall(tags)
    ]


def _kinds(topic: str, direction: str) -> dict[str, Any]:
    """The classes that a topic may carry in this direction, by name."""
    tables = [table[topic] for table in (TOPICS, COMMON, LOCAL_TOPICS) if topic in table]
    declared = [
        kind for found in tables
        for kind in ((found.request,) if direction == "request" else (found.response, *found.plain))
    ]  # fmt: skip
    classes = {one.__name__: one for kind in declared for one in generate.classes_of(kind)}
    return classes or {"FreeForm": dict[str, Any]}


EXAMPLES = _examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.topic}-{example.direction}-{example.name}")
def test_examples_parse_as_their_class(example):
    kinds = _kinds(example.topic, example.direction)
    assert example.name in kinds, f"{example.topic} {example.direction} is one of {', '.join(kinds)}"
    kind = kinds[example.name]
    value = framing.from_json(example.text.encode(), kind)
    assert framing.unpack(framing.pack(value), kind) == value
    if example.name != "FreeForm":
        _same_keys(json.loads(example.text), value)


def _same_keys(given: dict[str, Any], value: Any) -> None:
    """An example has no key that its class does not know, down to the classes within it."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
    tag = value.__struct_config__.tag_field
    assert set(given) <= set(fields) | {tag}
    for key in set(given) - {tag}:
        part, inner = given[key], getattr(value, fields[key])
        pairs = zip(part, inner, strict=True) if isinstance(inner, list) else [(part, inner)]
        if isinstance(inner, dict):
            pairs = [(part[name], one) for name, one in inner.items()]
        for left, right in pairs:
            if isinstance(right, msgspec.Struct):
                _same_keys(left, right)


def test_a_wrong_example_would_be_found():
    kind = _kinds("resource.drain", "request")["DrainRequest"]
    with pytest.raises(RemoteProtocolError):
        framing.from_json(b'{"targets": 3}', kind)
    with pytest.raises(AssertionError):
        _same_keys({"targets": "3", "raison": "x"}, framing.from_json(b'{"targets": "3"}', kind))


def _own_topics() -> list[str]:
    common = tuple(name.removeprefix("NAME") for name in COMMON)
    return [name for name in TOPICS if not name.endswith(common)] + [*COMMON, *LOCAL_TOPICS]


@pytest.mark.parametrize("topic", _own_topics())
def test_every_topic_is_in_a_page_with_all_its_messages(topic):
    pages = [page for page in PAGES if page.name != "README.md"]
    assert any(f"`{topic}`" in page.read_text() for page in pages)
    found = {**LOCAL_TOPICS, **TOPICS, **COMMON}[topic]
    shown = {(one.direction, one.name) for one in EXAMPLES if one.topic == topic}
    for direction in ("request", "response"):
        if direction == "response" and found.response is None:
            continue
        needed = set(_kinds(topic, direction)) - {Empty.__name__}
        assert {(direction, name) for name in needed} <= shown


def test_every_class_is_on_some_topic():
    carried = {
        one
        for topic in (*TOPICS.values(), *LOCAL_TOPICS.values())
        for kind in (topic.request, topic.response, *topic.plain)
        for one in generate.classes_of(kind)
    }
    within = {
        "ConfigChange", "GroupInfo", "DrainInfo", "DrainReason", "ResourceEvent", "JobInfo", "UsageInfo", "ModuleInfo",
        "JobStates", "AccountInfo", "ClusterInfo", "GroupMetrics", "HistogramValue", "JobMetrics", "LeaseInfo",
        "Notice", "OutageInfo", "PartDrainInfo", "PeerMetrics", "PlannedOutage", "QueueJobs", "QueueMetrics",
        "GpuUsageInfo", "ReportRow", "SpareInfo", "StoreMetrics", "TracedMessage", "WhenEntry",
    }  # fmt: skip
    assert {one.__name__ for one in set(generate.all_classes()) - carried} == within


def test_no_page_speaks_of_a_topic_that_is_not():
    local = {name.partition(".")[0] for name in LOCAL_TOPICS}
    services = "|".join(sorted(map(re.escape, SERVICES | local)))
    known = {*TOPICS, *LOCAL_TOPICS, *(name.replace("NAME", service) for name in COMMON for service in SERVICES)}
    for page in PAGES:
        named = set(re.findall(rf"`((?:{services})\.[a-z-]+)`", page.read_text()))
        unknown = {name for name in named if name not in known}
        assert unknown <= {"sched.resource_summary", "sched.reason_pending", "sched.t_estimate", "bundle.py"}, page.name


def test_common_topics_are_there_for_each_service():
    methods = ("ping", "stats-get", "disconnect")
    assert all(f"{service}.{method}" in TOPICS for service in SERVICES for method in methods)
    assert TOPICS["resource.disconnect"].response is None
    assert TOPICS["resource.ping"].response is not None


def test_generated_files_are_current():
    outputs = generate.outputs()
    stale = [path.name for path, content in outputs.items() if not path.exists() or path.read_bytes() != content]
    assert not stale, "run `python rfc/generate.py`"


def test_every_part_that_is_made_is_shown():
    text = "".join(page.read_text() for page in [*PAGES, RFC.parent / "CONTRIBUTING.md"])
    assert all(f"<!-- generated: {name} -->" in text for name in generate.parts())


def test_schema_files_are_those_of_the_modules():
    assert {path.name for path in (RFC / "schemas").glob("*.json")} == set(generate.schemas())


def test_schemas_say_what_the_classes_say():
    drain = generate.schemas()["resource.json"]["$defs"]["DrainRequest"]
    assert drain["required"] == ["targets"]
    assert set(drain["properties"]) == {"targets", "reason", "mode", "cores", "gpus", "for"}
    grow = generate.schemas()["resource.json"]["$defs"]["Grow"]
    assert set(grow["required"]) == {"type", "resources", "online", "offline"}
    acquire = generate.schemas()["topics.json"]["resource.acquire"]
    assert acquire["streaming"] is True
    assert {"$ref": "resource.json#/$defs/AcquireFirst"} in acquire["response"]["anyOf"]
    for name, topic in generate.schemas()["topics.json"].items():
        assert topic["description"], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (RFC / target).exists(), target


def test_messages_written_out_in_the_wire_page_are_what_we_send():
    """As a client sends them that was written from the page alone: type, flags, topic, matchtag, payload."""
    text = (RFC / "wire.md").read_text()
    found = re.findall(r"^ {4}\(empty\)\n {4}(\S+) .*\n {4}(\S+) .*\n {4}([0-9a-f ]+)$", text, re.MULTILINE)
    told = []
    for parts in found:
        topic, payload, last = [bytes.fromhex(part) for part in parts]
        message = framing.decode([b"", topic, payload, last])
        assert framing.encode(message) == [b"", topic, payload, last]
        told.append((message.topic, message.flags & ~0x0B, message.matchtag, msgspec.msgpack.decode(payload)))
    assert told == [
        ("attr.get", 0, 1, {"name": "size"}),
        ("resource.acquire", 0x40, 2, {"group": "default"}),
        ("resource.acquire-cancel", 0x04, 0, {"matchtag": 2}),
    ]


def test_limits_in_the_wire_page_are_those_of_the_code():
    text = (RFC / "wire.md").read_text()
    found = re.findall(r"\| ([\d,]+)(?: bytes| MiB)? \| `([\w.]+)` \|", text)
    assert len(found) == 23
    for value, path in found:
        place, _, name = path.rpartition(".")
        limits = PeerLimits() if place == "messaging.peers.PeerLimits" else import_module(f"fluxsched.{place}")
        actual = getattr(limits, name)
        assert int(value.replace(",", "")) in (actual, actual >> 20), path
