"""Configurations: what is read, and every fault with its path."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("yaml")

from fluxsched.errors import InvalidParts, InvalidValue
from fluxsched.yunikorn import config as queues
from fluxsched.yunikorn import config as reader
from fluxsched.yunikorn import sections as faults
from fluxsched.yunikorn.config import (
    DEFAULT_CONFIG,
    FILTERED_NAME_CHARS_MAX,
    PATTERN_CHARS_MAX,
    PATTERN_REPEATS_MAX,
    RULE_DEPTH_MAX,
    AccessList,
    NameFilter,
    PartitionSettings,
    check_pattern,
    read_config,
)
from fluxsched.yunikorn.tree.queues import QUEUE_DEPTH_MAX, Limit, QueueSettings
from tests.generated.share import examples


def partition(text: str) -> PartitionSettings:
    """That of a configuration of one, from what it has below its name."""
    (found,) = read_config(f"partitions:\n- {text.strip()}\n")
    return found


def faults_of(text: str) -> dict[str, str]:
    """By path."""
    with pytest.raises(InvalidParts) as caught:
        read_config(text)
    return {path: fault for (path,), fault in caught.value.faults}


def leaf(text: str) -> QueueSettings:
    """The settings of a queue that is written in one line."""
    return partition(f"{{queues: [{{name: a, {text}}}]}}").root.children[0]


WHOLE = """
  name: gpu
  placementrules:
  - name: tag
    value: namespace
    create: true
    parent: {name: fixed, value: tenants}
    filter: {type: deny, users: [eve], groups: ["^ext"]}
  nodesortpolicy: {type: binpacking, resourceweights: {vcore: 2, memory: 0.5}}
  preemption: {enabled: true}
  limits:
  - {limit: all, users: ["*"], maxapplications: 9}
  queues:
  - name: root
    submitacl: "*"
    queues:
    - name: tenants
      parent: true
      adminacl: "ann,bob ops"
      properties: {application.sort.policy: fair, priority.offset: -3, preemption.delay: 1m30s}
      childtemplate:
        maxapplications: 2
        properties: {application.sort.policy: stateaware}
        resources: {max: {memory: 4Gi}}
    - name: batch
      maxapplications: 5
      resources:
        guaranteed: {vcore: 2, memory: 1.5G, example.com/gpu: 0}
        max: {vcore: 2500m, example.com/gpu: 0}
      properties: {priority.policy: fence, preemption.policy: disabled, application.sort.priority: disabled}
      limits:
      - {users: [ann], groups: [ops], maxresources: {vcore: 1}}
"""


ONE = f"partitions:\n- {WHOLE.strip()}\n"


def test_a_whole_configuration_is_read() -> None:
    found = partition(WHOLE)
    assert (found.name, found.node_order, found.preemption, found.is_open) == ("gpu", "binpacking", True, False)
    assert found.weights == {"vcore": 2.0, "memory": 0.5}
    assert found.root.limits == (Limit(users=frozenset("*"), max_applications=9),)
    tenants, batch = found.root.children
    assert (tenants.is_parent, tenants.sort, tenants.priority_offset, tenants.preemption_delay_s) == (
        True,
        "fair",
        -3,
        90,
    )
    assert batch == QueueSettings(
        name="batch",
        guaranteed=(("memory", 1_500_000_000), ("vcore", 2000)),
        maximum=(("example.com/gpu", 0), ("vcore", 2500)),
        max_applications=5,
        by_priority=False,
        priority_fence=True,
        preemption="disabled",
        limits=(Limit(frozenset(["ann"]), frozenset(["ops"]), (("vcore", 1000),)),),
    )
    assert found.access["root.tenants"].admin == AccessList(frozenset(["ann", "bob"]), frozenset(["ops"]))
    template = found.access["root.tenants"].template
    assert template is not None
    assert (template.max_applications, template.maximum) == (2, (("memory", 4 << 30),))
    (rule,) = found.rules
    assert (rule.name, rule.value, rule.is_creating) == ("tag", "namespace", True)
    assert rule.parent is not None
    assert rule.parent.value == "tenants"
    assert not rule.filter.admits("eve", frozenset())
    assert not rule.filter.admits("ann", frozenset(["external"]))
    assert rule.filter.admits("ann", frozenset(["ops"]))


def test_an_empty_configuration_is_the_default() -> None:
    (found,) = read_config("")
    assert [(str(rule), rule.is_creating) for rule in found.rules] == [("provided", True), ("tag namespace", True)]
    assert (found.name, found.node_order, found.preemption) == ("default", "fair", False)
    assert read_config("# nothing\n") == read_config(DEFAULT_CONFIG) == (found,)


def test_a_missing_root_is_added_with_the_limits_of_the_partition() -> None:
    found = partition("{queues: [{name: a}, {name: b}], limits: [{users: [ann], maxapplications: 1}]}")
    assert found.root.name == "root"
    assert [queue.name for queue in found.root.children] == ["a", "b"]
    assert found.root.limits[0].users == {"ann"}
    assert [queue.name for queue in partition("{queues: [{name: root}, {name: b}]}").root.children] == ["root", "b"]


def test_properties_are_inherited_as_far_as_they_hold_below() -> None:
    text = """{queues: [{name: a, properties: {application.sort.policy: fair, application.sort.priority: disabled,
        preemption.delay: 5s, priority.offset: 4, priority.policy: fence, preemption.policy: fence},
        queues: [{name: b}, {name: c, properties: {application.sort.policy: fifo}}]},
        {name: d, properties: {preemption.policy: disabled}, queues: [{name: e}]}]}"""
    root = partition(text).root
    b, c = root.children[0].children
    assert (b.sort, b.by_priority, b.preemption_delay_s) == ("fair", False, 5.0)
    assert (b.priority_offset, b.priority_fence, b.preemption) == (0, False, "default")
    assert c.sort == "fifo"
    assert root.children[1].children[0].preemption == "disabled"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("name: a b", "name", "'a b' cannot be a queue's name"),
        (f"name: {'a' * 65}", "name", "1 to 64"),
        ("name: ''", "name", "'' cannot be a queue's name"),
        ("name: a, parent: perhaps", "parent", "neither true nor false"),
        ("name: a, colour: red", "colour", "this key is not known here, only adminacl"),
        ("name: a, maxapplications: -1", "maxapplications", "'-1' is not a whole number within 0"),
        ("name: a, maxapplications: many", "maxapplications", "'many'"),
        ("name: a, submitacl: a b c", "submitacl", "more than one blank"),
        ("name: a, submitacl: [a]", "submitacl", "must be a text, not a list"),
        ("name: a, resources: {max: {vcore: 2x}}", "resources.max.vcore", "'2x' is not a quantity"),
        ("name: a, resources: {max: {vcore: -2}}", "resources.max.vcore", "'-2' is not a quantity"),
        ("name: a, resources: {max: {vcore: 0.5m}}", "resources.max.vcore", "whole number of thousandths"),
        ("name: a, resources: {max: {memory: 500m}}", "resources.max.memory", "whole number of units"),
        ("name: a, resources: {max: {memory: 2E}}", "resources.max.memory", "above the limit of 1152921504606846976"),
        ("name: a, resources: {max: {memory: 1e99}}", "resources.max.memory", "above the limit"),
        ("name: a, resources: {max: 4}", "resources.max", "must be a mapping, not a text"),
        ("name: a, resources: {least: {}}", "resources.least", "not known"),
        ("name: a, resources: {guaranteed: {vcore: 3}, max: {vcore: 2}}", "resources.guaranteed.vcore", "of 2 vcore"),
        ("name: a, properties: {application.sort.policy: best}", "properties.application.sort.policy", "fifo, fair"),
        ("name: a, properties: {application.sort.priority: on}", "properties.application.sort.priority", "enabled"),
        ("name: a, properties: {priority.offset: 1.5}", "properties.priority.offset", "whole number"),
        ("name: a, properties: {priority.offset: 2147483648}", "properties.priority.offset", "whole number"),
        ("name: a, properties: {priority.policy: wall}", "properties.priority.policy", "default, fence"),
        ("name: a, properties: {preemption.policy: no}", "properties.preemption.policy", "default, disabled, fence"),
        ("name: a, properties: {preemption.delay: 30}", "properties.preemption.delay", "'30' is not a time"),
        ("name: a, properties: {preemption.delay: 0s}", "properties.preemption.delay", "'0s' is not a time"),
        ("name: a, properties: {speed: 1}", "properties.speed", "not known"),
        ("name: a, limits: {users: [a]}", "limits", "must be a list"),
        ("name: a, limits: [{maxapplications: 1}]", "limits[0]", "names no users"),
        ("name: a, limits: [{users: [a]}]", "limits[0]", "limits nothing"),
        ("name: a, limits: [{users: [''], maxapplications: 1}]", "limits[0].users[0]", "not an empty text"),
        ("name: a, limits: [{users: [a], maxresources: {vcore: x}}]", "limits[0].maxresources.vcore", "quantity"),
        ("name: a, limits: [{users: [a], maxapplications: 1, who: b}]", "limits[0].who", "not known"),
        ("name: a, childtemplate: {resources: {max: {vcore: x}}}", "childtemplate.resources.max.vcore", "quantity"),
        ("name: a, childtemplate: {properties: {a: b}}", "childtemplate.properties.a", "not known"),
        ("name: a, childtemplate: {queues: []}", "childtemplate.queues", "not known"),
        ("name: a, childtemplate: {resources: {guaranteed: {vcore: 2}, max: {vcore: 1}}}",
         "childtemplate.resources.guaranteed.vcore", "above the max"),
        ("name: a, queues: [{name: b}, {name: b}]", "queues[1].name", "another queue 'b'"),
        ("name: a, maxapplications: 2, queues: [{name: b, maxapplications: 3}]", "queues[0].maxapplications", "the 2"),
        ("name: a, resources: {max: {vcore: 2}}, queues: [{name: b, resources: {max: {vcore: 3}}}]",
         "queues[0].resources.max.vcore", "3 vcore is above the 2 vcore"),
        ("name: a,resources: {max: {vcore: 2}}, queues: [{name: b, queues: [{name: c, resources: {max: {vcore: 3}}}]}]",
         "queues[0].queues[0].resources.max.vcore", "3 vcore is above the 2 vcore"),
        ("name: a, resources: {guaranteed: {memory: 4Gi}}, queues: [{name: b, resources: {guaranteed: {memory: 3Gi}}},"
         " {name: c, resources: {guaranteed: {memory: 2Gi}}}]", "resources.guaranteed.memory", "guaranteed 5Gi memory"),
        ("name: a, resources: {max: {memory: 4Gi}}, queues: [{name: b, resources: {guaranteed: {memory: 3Gi}}},"
         " {name: c, resources: {guaranteed: {memory: 2Gi}}}]", "resources.max.memory", "guaranteed 5Gi memory"),
    ],
)  # fmt: skip
def test_a_fault_of_a_queue_has_its_path(text: str, path: str, words: str) -> None:
    found = faults_of(f"partitions: [{{name: default, queues: [{{name: root, queues: [{{{text}}}]}}]}}]")
    assert list(found) == [f"partitions[0].queues[0].queues[0].{path}"]
    assert words in next(iter(found.values()))


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("name: a b, queues: [{name: a}]", "name", "no name of a partition"),
        ("queues: []", "queues", "at least one"),
        ("queues: {name: a}", "queues", "must be a list"),
        ("queues: [4]", "queues[0]", "must be a mapping"),
        ("queues: [{name: a}], statedump: x", "statedump", "not known"),
        ("queues: [{name: root, resources: {max: {vcore: 1}}}]", "queues[0].resources.max", "what nodes have"),
        ("queues: [{name: root, resources: {guaranteed: {vcore: 1}}}]", "queues[0].resources.guaranteed", "nodes have"),
        ("queues: [{name: a}, {name: a}]", "queues[1].name", "another queue"),
        ("queues: [{name: a}], preemption: {enabled: maybe}", "preemption.enabled", "neither"),
        ("queues: [{name: a}], nodesortpolicy: {type: best}", "nodesortpolicy.type", "fair, binpacking"),
        ("queues: [{name: a}], nodesortpolicy: {resourceweights: {vcore: -1}}",
         "nodesortpolicy.resourceweights.vcore", "not a weight"),
        ("queues: [{name: a}], nodesortpolicy: {resourceweights: {vcore: 0}}",
         "nodesortpolicy.resourceweights", "all weights"),
        ("queues: [{name: a}], placementrules: [{name: best}]", "placementrules[0].name", "provided, user, fixed, tag"),
        ("queues: [{name: a}], placementrules: [{name: fixed}]", "placementrules[0].value", "needs the queue"),
        ("queues: [{name: a}], placementrules: [{name: tag}]", "placementrules[0].value", "needs the name of a tag"),
        ("queues: [{name: a}], placementrules: [{name: fixed, value: a..b}]", "placementrules[0].value", "no path"),
        ("queues: [{name: a}], placementrules: [{name: fixed, value: root.a, parent: {name: user}}]",
         "placementrules[0].parent", "named in full"),
        ("queues: [{name: a}], placementrules: [{name: user, parent: {name: fixed}}]",
         "placementrules[0].parent.value", "needs the queue"),
        ("queues: [{name: a}], placementrules: [{name: user, filter: {type: some}}]",
         "placementrules[0].filter.type", "allow, deny"),
        ("queues: [{name: a}], placementrules: [{name: user, filter: {users: ['(']}}]",
         "placementrules[0].filter.users[0]", "no regular expression"),
    ],
)  # fmt: skip
def test_a_fault_of_a_partition_has_its_path(text: str, path: str, words: str) -> None:
    found = faults_of(f"partitions: [{{{text}}}]")
    assert list(found) == [f"partitions[0].{path}"]
    assert words in next(iter(found.values()))


def test_all_faults_are_told_at_once() -> None:
    text = "partitions: [{colour: red, queues: [{name: a, resources: {max: {vcore: x, memory: y}}}, {parent: 3}]}]"
    found = faults_of(text)
    assert sorted(found) == [
        "partitions[0].colour",
        "partitions[0].queues[0].resources.max.memory",
        "partitions[0].queues[0].resources.max.vcore",
        "partitions[0].queues[1].name",
        "partitions[0].queues[1].parent",
    ]
    with pytest.raises(InvalidValue, match=r"partitions\[0\]\.queues\[0\]\.resources\.max\.vcore: 'x'"):
        read_config(text)


@pytest.mark.parametrize("text", ["partitions: []", "partitions:", "{}"])
def test_no_partitions_are_refused(text: str) -> None:
    assert faults_of(text) == {"partitions": "give at least one"}


def test_partitions_are_found_once_and_known_keys_alone_are_read() -> None:
    text = "{partitions: [{queues: [{name: a}]}, {name: default, queues: [{name: a}]}], checksum: 1}"
    assert list(faults_of(text)) == ["checksum", "partitions[1].name"]
    assert faults_of("[1]") == {"": "must be a mapping, not a list"}


def test_the_text_of_an_error_is_bounded_and_its_faults_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FAULTS_TOLD_MAX", 2)
    with pytest.raises(InvalidParts, match=r"; and 2 more$") as caught:
        read_config("partitions: [{queues: [{name: a}], b: 1, c: 1, d: 1, e: 1}]")
    assert len(caught.value.faults) == 4


def test_partitions_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PARTITIONS_MAX", 1)
    text = "partitions: [{name: a, queues: [{name: a}]}, {name: b, queues: [{name: a}]}]"
    assert faults_of(text) == {"partitions": "2 partitions: the limit is 1"}


def test_kinds_of_resources_have_a_limit() -> None:
    amounts = ", ".join([f"k{at}: 1" for at in range(queues.CONFIG_KINDS_MAX + 1)])
    (path,) = faults_of(f"partitions: [{{queues: [{{name: a, resources: {{max: {{{amounts}}}}}}}]}}]")
    assert path == "partitions[0].queues[0].resources.max"


def test_queues_are_so_many_levels_deep() -> None:
    def nested(levels: int) -> str:
        return f"partitions: [{{queues: [{{name: root{', queues: [{name: a' * levels}{'}]' * levels}}}]}}]"

    assert read_config(nested(QUEUE_DEPTH_MAX))
    (text,) = faults_of(nested(QUEUE_DEPTH_MAX + 1)).values()
    assert text == f"it is {QUEUE_DEPTH_MAX + 1} levels deep, the limit is {QUEUE_DEPTH_MAX}: give it another parent"


def test_rules_within_rules_have_a_limit() -> None:
    text = "{name: user, parent: " * RULE_DEPTH_MAX + "{name: user}" + "}" * RULE_DEPTH_MAX
    (found,) = faults_of(f"partitions: [{{queues: [{{name: a}}], placementrules: [{text}]}}]").values()
    assert found == f"rules within rules: the limit is {queues.RULE_DEPTH_MAX}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(a+)+", "repeats a group"),
        ("(a|b)*", "repeats a group"),
        ("(?:a){3}", "repeats a group"),
        (r"(a)\1", "uses lookaround or a back-reference"),
        ("(?=a)", "uses lookaround or a back-reference"),
        ("(?<!a)b", "uses lookaround or a back-reference"),
        ("a*" * (PATTERN_REPEATS_MAX + 1), "the limit is 2"),
        ("a" * (PATTERN_CHARS_MAX + 1), "the limit of 256"),
        ("[", "no regular expression"),
        ("[[:alpha:]]", "a nested set"),
        ("[a--b]", "a nested set"),
    ],
)
def test_costly_patterns_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        check_pattern(text)


def test_plain_patterns_are_taken_and_long_names_are_in_none() -> None:
    for text in ("^team-[a-z]+$", r"(?i)^(ann|bob)\.x", r"[()+*\[]?\)x", "(?:a|b)c"):
        check_pattern(text)
    names = NameFilter(pattern=check_pattern("n"))
    assert names.has("n" * FILTERED_NAME_CHARS_MAX)
    assert not names.has("n" * (FILTERED_NAME_CHARS_MAX + 1))


@pytest.mark.parametrize(
    ("written", "amount"),
    [("2", 2000), ("500m", 500), ("0.25", 250), ("1e1", 10_000), ("010", 10_000), ('"4"', 4000), ("1k", 1_000_000)],
)
def test_vcores_are_thousandths(written: str, amount: int) -> None:
    assert leaf(f"resources: {{max: {{vcore: {written}}}}}").maximum == (("vcore", amount),)


@pytest.mark.parametrize(
    ("written", "amount"),
    [("4Gi", 4 << 30), ("4G", 4 * 10**9), ("1.5Ki", 1536), ("1Ei", 1 << 60), ("12E-1", None), ("0", 0), ("7e2", 700)],
)
def test_memory_is_bytes(written: str, amount: int | None) -> None:
    text = f"resources: {{max: {{memory: {written}}}}}"
    if amount is None:
        with pytest.raises(InvalidValue, match="whole number"):
            leaf(text)
    else:
        assert leaf(text).maximum == (("memory", amount),)


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_whatever_is_written_is_read_or_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ONE)))
    gone = data.draw(st.integers(0, 20))
    pieces = ["*x", "&x", "\n- ", "[", "{", ": ", "\0", "~", "-1"]
    piece = data.draw(st.one_of(st.text(max_size=8), st.sampled_from(pieces)))
    with suppress(InvalidValue):
        assert read_config(ONE[:at] + piece + ONE[at + gone :])
