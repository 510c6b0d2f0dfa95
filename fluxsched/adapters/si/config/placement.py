"""Where an application goes: the first rule that names a queue which takes it, and the queues to be made for it.

Law: nothing is changed here. A queue is made only below a parent that its user may submit to, and takes the template
and the quota that came with the application; what is refused is refused in words, rule by rule.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from fluxsched.adapters.si.config.queues import CONFIG_KINDS_MAX, inherit, queue_settings
from fluxsched.adapters.si.config.settings import (
    FIXED,
    PROVIDED,
    ROOT,
    TAG,
    ChildTemplate,
    PartitionSettings,
    PlacementRule,
    QueueAccess,
)  # fmt: skip
from fluxsched.core.amounts import AMOUNT_MAX, Amounts
from fluxsched.core.jsontext import load_object, shown
from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.quotas.queue import Queue
from fluxsched.sched.quotas.settings import QueueSettings
from fluxsched.sched.quotas.tree import QUEUE_DEPTH_MAX, QueueTree

QUOTA_TAG: Final = "namespace.resourcequota"
"""The tag of an application with the maximum of a queue that is made for it: a Resource as JSON."""

QUOTA_CHARS_MAX = 65_536
"""Of that tag."""

_CREATED_NAME: Final = re.compile(r"[A-Za-z0-9_:#/@-]{1,64}", re.ASCII)
"""Names of made queues come from users and tags, which have more characters than configured queues."""

_AS_PROVIDED: Final = (PlacementRule(PROVIDED),)
"""Without rules: the queue that is asked for has to be there."""


class Submission(NamedTuple):
    """What rules look at; `queue` is what the application asks for, if anything."""

    queue: str
    user: str
    groups: frozenset[str]
    tags: Mapping[str, str]


class Placed(NamedTuple):
    """The leaf of the application; `created` are the queues to be made for it, from the uppermost down."""

    path: str
    created: tuple[tuple[str, QueueSettings], ...] = ()


def place_application(partition: PartitionSettings, tree: QueueTree, submission: Submission) -> Placed:
    """The queue of an application. Raises Refused, saying what each rule that was for it came to."""
    refusals = []
    for rule in partition.rules or _AS_PROVIDED:
        try:
            path = _path_of(rule, tree, submission)
            if path is not None:
                return _placed(partition, tree, submission, path)
        except Refused as refusal:
            refusals.append(f"rule {rule}: {refusal}")
    raise Refused("; ".join(refusals) or "no placement rule is for it", errno.ENOENT)


def make_queue(tree: QueueTree, placed: Placed) -> Queue:
    """The leaf of a placed application, made if it has to be. Raises InvalidValue where the tree is full."""
    for path, settings in placed.created:
        tree.create(path, settings)
    queue = tree.queue(placed.path)
    if queue is None:
        raise InvalidValue(f"queue {shown(placed.path)} has gone since the application was placed")
    return queue


def may_submit(partition: PartitionSettings, queue: Queue, user: str, groups: frozenset[str]) -> bool:
    """Whether the user may submit to the queue: its lists allow it, or those of a queue above."""
    if partition.is_open:
        return True
    found = [partition.access[each.path] for each in queue.up() if each.path in partition.access]
    return any(each.submit.allows(user, groups) or each.admin.allows(user, groups) for each in found)


# ---- what a rule names


def _path_of(rule: PlacementRule, tree: QueueTree, submission: Submission) -> str | None:
    """The full path that the rule names, None if it is not for this application. Raises Refused."""
    name = _name_of(rule, submission)
    if not name or not rule.filter.admits(submission.user, submission.groups):
        return None
    if name == ROOT or name.startswith(f"{ROOT}."):
        path = name
    else:
        parent = ROOT
        if rule.parent is not None:
            above = _path_of(rule.parent, tree, submission)
            if above is None:
                return None
            parent = above
        path = f"{parent}.{name if rule.name == FIXED else name.replace('.', '_dot_')}"
    if not rule.is_creating and tree.queue(path) is None:
        raise Refused(f"there is no queue {shown(path)}, and the rule creates none", errno.ENOENT)
    return path


def _name_of(rule: PlacementRule, submission: Submission) -> str:
    if rule.name == PROVIDED:
        return submission.queue
    if rule.name == FIXED:
        return rule.value
    return submission.tags.get(rule.value, "") if rule.name == TAG else submission.user


# ---- whether the queue takes it


def _placed(partition: PartitionSettings, tree: QueueTree, submission: Submission, path: str) -> Placed:
    names = path.split(".")
    if len(names) > QUEUE_DEPTH_MAX + 1:
        raise Refused(f"the queue would be {len(names) - 1} levels deep: the limit is {QUEUE_DEPTH_MAX}", errno.EINVAL)
    there = len(names)
    while (queue := tree.queue(".".join(names[:there]))) is None:
        there -= 1  # ends at the root
    missing = names[there:]
    _check_takes(partition, queue, submission, is_parent=bool(missing))
    for name in missing:
        if _CREATED_NAME.fullmatch(name) is None:
            raise Refused(
                f"{shown(name)} cannot be a queue's name: use 1 to 64 letters, digits and `_:#/@-`", errno.EINVAL
            )
    return Placed(path, _made(_access_above(partition, queue), queue.path, missing, submission))


def _check_takes(partition: PartitionSettings, queue: Queue, submission: Submission, *, is_parent: bool) -> None:
    if queue.is_leaf == is_parent:
        kind = "a leaf, no queue can be made below it" if is_parent else "a parent: name a leaf below it"
        raise Refused(f"queue {shown(queue.path)} is {kind}", errno.EINVAL)
    if queue.draining:
        raise Refused(f"queue {shown(queue.path)} is draining: it was removed from the configuration", errno.EBUSY)
    if not may_submit(partition, queue, submission.user, submission.groups):
        raise Refused(f"queue {shown(queue.path)} is closed to user {shown(submission.user)}", errno.EPERM)


def _access_above(partition: PartitionSettings, queue: Queue) -> QueueAccess:
    """That of the next configured queue above, or of the queue itself; the root is one."""
    return next(partition.access[each.path] for each in queue.up() if each.path in partition.access)


def _made(
    above: QueueAccess, path: str, missing: list[str], submission: Submission
) -> tuple[tuple[str, QueueSettings], ...]:
    """Parents down to the leaf, which takes the template and then the quota."""
    made = []
    properties = above.properties
    for at, name in enumerate(missing, 1):
        path = f"{path}.{name}"
        is_leaf = at == len(missing)
        template = (above.template if is_leaf else None) or ChildTemplate()
        properties = inherit(properties, template.properties)
        settings = queue_settings(
            name,
            properties,
            is_parent=not is_leaf,
            guaranteed=template.guaranteed,
            maximum=(_quota(submission.tags) if is_leaf else ()) or template.maximum,
            max_applications=template.max_applications,
        )
        made.append((path, settings))
    return tuple(made)


def _quota(tags: Mapping[str, str]) -> Amounts:
    """The maximum that came as a tag, () without."""
    text = tags.get(QUOTA_TAG, "")
    if not text:
        return ()
    try:
        if len(text) > QUOTA_CHARS_MAX:
            raise InvalidValue(f"{len(text)} characters are above the limit of {QUOTA_CHARS_MAX}")
        resources = load_object(load_object(text, "it").get("resources", {}), "its resources")
        if len(resources) > CONFIG_KINDS_MAX:
            raise InvalidValue(f"it has {len(resources)} kinds of resources: the limit is {CONFIG_KINDS_MAX}")
        return tuple(sorted([(kind, _quantity(kind, value)) for kind, value in resources.items()]))
    except InvalidValue as fault:
        raise Refused(f"tag {QUOTA_TAG} is no Resource: {fault}", errno.EINVAL) from None


def _quantity(kind: str, quantity: object) -> int:
    """`{"value": 10}`; JSON of protobuf writes the number as a text."""
    value = quantity.get("value", 0) if isinstance(quantity, dict) else quantity
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value, re.ASCII):
        value = int(value)
    if type(value) is not int or not 0 <= value <= AMOUNT_MAX:
        raise InvalidValue(f"{shown(kind)} is {shown(value)}: give a value within 0 and {AMOUNT_MAX}")
    return value
