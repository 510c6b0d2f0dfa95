"""Where applications go: rules, filters, access lists, queues that are made for them, and refusals in words."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("yaml")

from fluxsched.errors import Refused
from fluxsched.yunikorn.config import read_config
from fluxsched.yunikorn.placement import QUOTA_CHARS_MAX, QUOTA_TAG, Placed, Submission, make_queue, place_application
from fluxsched.yunikorn.tree.queues import QUEUE_DEPTH_MAX, QueueSettings, QueueTree

QUEUES = """
queues:
- name: root
  submitacl: "*"
  queues:
  - {name: a}
  - name: p
    properties: {application.sort.policy: fair}
    childtemplate:
      maxapplications: 3
      properties: {priority.offset: 2}
      resources: {guaranteed: {vcore: 1}, max: {vcore: 4}}
    queues:
    - {name: b}
    - {name: q, parent: true}
"""
CLOSED = """
queues:
- name: root
  queues:
  - {name: a, submitacl: "ann ops"}
  - {name: p, adminacl: "ann", parent: true}
  - {name: open, submitacl: "*"}
"""


def place(
    queue: str = "", *, queues: str = QUEUES, rules: str = "", user: str = "ann", groups: str = "", **tags: str
) -> Placed:
    (partition,) = read_config(
        "partitions:\n- name: default\n" + "".join(f"  {line}\n" for line in f"{queues}{rules}".splitlines())
    )
    tree = QueueTree(partition.root)
    placed = place_application(partition, tree, Submission(queue, user, frozenset(groups.split()), tags))
    queue = make_queue(tree, placed)
    assert (queue.path, queue.is_leaf) == (placed.path, True)
    return placed


def refusal(queue: str = "", **more: str) -> str:
    with pytest.raises(Refused) as caught:
        place(queue, **more)
    return str(caught.value)


@pytest.mark.parametrize(("queue", "path"), [("root.a", "root.a"), ("a", "root.a"), ("root.p.b", "root.p.b")])
def test_without_rules_the_queue_has_to_be_there(queue: str, path: str) -> None:
    assert place(queue) == Placed(path)


def test_refusals_are_in_words() -> None:
    assert refusal("root.x") == "rule provided: there is no queue 'root.x', and the rule creates none"
    assert refusal("root.p") == "rule provided: queue 'root.p' is a parent: name a leaf below it"
    assert refusal("root") == "rule provided: queue 'root' is a parent: name a leaf below it"
    assert refusal() == "no placement rule is for it"
    text = "rule provided: queue 'root.a' is a leaf, no queue can be made below it"
    assert refusal("root.a.x", rules="placementrules: [{name: provided, create: true}]") == text
    rules = "placementrules: [{name: fixed, value: x}, {name: tag, value: t}]"
    text = "rule fixed x: there is no queue 'root.x', and the rule creates none"
    assert refusal(rules=rules) == text
    assert refusal(rules=rules, t="p").startswith(f"{text}; rule tag t: queue 'root.p' is a parent")


def test_a_draining_queue_takes_nothing() -> None:
    (partition,) = read_config("partitions: [{queues: [{name: a}, {name: b}]}]")
    tree = QueueTree(partition.root)
    leaf = tree.queue("root.a")
    assert leaf is not None
    tree.add_application("one", leaf, "ann", (), 0.0)
    tree.reconfigure(QueueSettings("root", is_parent=True, children=(QueueSettings("b"),)))
    with pytest.raises(Refused, match=r"'root\.a' is draining"):
        place_application(partition, tree, Submission("root.a", "ann", frozenset(), {}))


@pytest.mark.parametrize(
    ("queue", "user", "groups", "is_allowed"),
    [
        ("root.a", "ann", "", True),
        ("root.a", "bob", "", False),
        ("root.a", "bob", "ops", True),
        ("root.p.x", "ann", "", True),
        ("root.p.x", "bob", "ops", False),
        ("root.open", "bob", "", True),
    ],
)
def test_access_lists_hold(queue: str, user: str, groups: str, is_allowed: bool) -> None:
    rules = "placementrules: [{name: provided, create: true}]"
    if is_allowed:
        assert place(queue, queues=CLOSED, rules=rules, user=user, groups=groups).path == queue
    else:
        assert f"is closed to user '{user}'" in refusal(queue, queues=CLOSED, rules=rules, user=user, groups=groups)


def test_without_any_access_list_all_may_submit() -> None:
    assert place("a", queues="queues: [{name: a}]", user="").path == "root.a"


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ("{name: user, create: true}", "root.ann_dot_x"),
        ("{name: tag, value: t, create: true}", "root.ns"),
        ("{name: fixed, value: a}", "root.a"),
        ("{name: fixed, value: root.p.b}", "root.p.b"),
        ("{name: user, create: true, parent: {name: fixed, value: p}}", "root.p.ann_dot_x"),
        ("{name: user, create: true, parent: {name: tag, value: t, create: true}}", "root.ns.ann_dot_x"),
        ("{name: user, create: true, parent: {name: tag, value: none}}, {name: fixed, value: a}", "root.a"),
        ("{name: user, create: true, parent: {name: fixed, value: none}}, {name: fixed, value: a}", "root.a"),
        ("{name: user}, {name: fixed, value: a}", "root.a"),
        ("{name: fixed, value: p}, {name: fixed, value: a}", "root.a"),
        ("{name: user, create: true, filter: {users: [bob]}}, {name: fixed, value: a}", "root.a"),
        ("{name: user, create: true, filter: {type: deny, users: [bob]}}", "root.ann_dot_x"),
        ("{name: user, create: true, filter: {users: ['^ann']}}", "root.ann_dot_x"),
        ("{name: user, create: true, filter: {users: [bob], groups: [ops]}}", "root.ann_dot_x"),
        ("{name: user, create: true, filter: {type: deny, groups: ['^o']}}, {name: fixed, value: a}", "root.a"),
        ("{name: user, create: true, filter: {type: deny}}, {name: fixed, value: a}", "root.a"),
    ],
)
def test_the_first_rule_that_leads_somewhere_places(rules: str, path: str) -> None:
    assert place(rules=f"placementrules: [{rules}]", user="ann.x", groups="ops", t="ns").path == path


def test_a_full_name_needs_no_parent_rule() -> None:
    rules = "placementrules: [{name: provided, parent: {name: fixed, value: p}}]"
    assert place("root.a", rules=rules).path == "root.a"
    assert place("b", rules=rules).path == "root.p.b"


def test_a_created_queue_takes_the_template_and_then_the_quota() -> None:
    rules = "placementrules: [{name: provided, create: true}]"
    ((path, settings),) = place("root.p.new", rules=rules).created
    assert path == "root.p.new"
    assert settings == QueueSettings(
        "new", guaranteed=(("vcore", 1000),), maximum=(("vcore", 4000),), max_applications=3, sort="fair",
        priority_offset=2,
    )  # fmt: skip
    quota = json.dumps({"resources": {"vcore": {"value": 7}, "memory": {"value": "5"}}})
    ((_, settings),) = place("root.p.new", rules=rules, **{QUOTA_TAG: quota}).created
    assert settings.maximum == (("memory", 5), ("vcore", 7))
    assert settings.guaranteed == (("vcore", 1000),)


def test_parents_are_created_above_a_created_leaf_and_templates_go_down() -> None:
    rules = "placementrules: [{name: provided, create: true}]"
    created = place("root.p.q.x.y", rules=rules).created
    assert [(path, settings.is_parent, settings.max_applications) for path, settings in created] == [
        ("root.p.q.x", True, 0),
        ("root.p.q.x.y", False, 3),
    ]
    assert place("root.x", rules=rules).created == (("root.x", QueueSettings("x")),)


@pytest.mark.parametrize(
    "quota",
    ["{", "[]", '{"resources": []}', '{"resources": {"vcore": {"value": -1}}}', '{"resources": {"vcore": 1.5}}',
     '{"resources": {"vcore": {"value": "1152921504606846977"}}}', " " * (QUOTA_CHARS_MAX + 1),
     json.dumps({"resources": {f"k{at}": {"value": 1} for at in range(33)}})],
)  # fmt: skip
def test_a_quota_that_is_no_resource_is_refused(quota: str) -> None:
    rules = "placementrules: [{name: provided, create: true}]"
    assert "tag namespace.resourcequota is no Resource" in refusal("x", rules=rules, **{QUOTA_TAG: quota})


def test_names_and_depth_of_created_queues_have_limits() -> None:
    rules = "placementrules: [{name: provided, create: true}, {name: user, create: true}]"
    assert "'a b' cannot be a queue's name" in refusal("root.a b", rules=rules, user="")
    assert "'' cannot be a queue's name" in refusal("root.", rules=rules, user="")
    assert place(rules=rules, user="ann@example").path == "root.ann@example"
    assert "'ann\\n' cannot be a queue's name" in refusal(rules=rules, user="ann\n")
    path = "root" + ".x" * QUEUE_DEPTH_MAX
    assert place(path, rules=rules).path == path
    assert f"the limit is {QUEUE_DEPTH_MAX}" in refusal(f"{path}.x", rules=rules, user="")
