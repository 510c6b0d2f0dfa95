"""Placement of applications: the first rule that names a queue which takes it, and the queues to be made for it.

Law: nothing is changed here. A queue is made only below a parent that its user may submit to, and takes the template
and the quota that came with the application; what is refused is refused in words, rule by rule.

The groups of users in the host's database.

Law: a user that the host does not know has none.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from fluxsched.core.quantities import AMOUNT_MAX, Amounts
from fluxsched.core.text import load_object, shown
from fluxsched.errors import InvalidValue, Refused
from fluxsched.yunikorn.config import (
    CONFIG_KINDS_MAX,
    COUNT_MAX,
    FIXED,
    PROVIDED,
    ROOT,
    TAG,
    ChildTemplate,
    PartitionSettings,
    PlacementRule,
    QueueAccess,
    inherit,
    queue_settings,
)
from fluxsched.yunikorn.tree.queues import QUEUE_DEPTH_MAX, Queue, QueueSettings, QueueTree

QUOTA_TAG: Final = "namespace.resourcequota"
"""The tag of an application with the maximum of a queue that is made for it: a Resource as JSON."""

GUARANTEED_TAG: Final = "namespace.resourceguaranteed"
"""Tag with the guarantee of the application's queue (since version 1.5)."""

APPLICATIONS_TAG: Final = "namespace.resourcemaxapps"
"""Tag with the maximum number of applications of the queue (since version 1.5)."""

QUOTA_CHARS_MAX = 65_536
"""Of a tag with a quota or a guarantee."""

SHARED_QUEUE: Final = f"{ROOT}.default"
"""The leaf of asks without an application."""

RECOVERY_NAME: Final = "@recovery@"
RECOVERY_QUEUE: Final = f"{ROOT}.{RECOVERY_NAME}"
"""The leaf of applications that no other queue takes and of which something runs already."""

_CREATED_NAME: Final = re.compile(r"[A-Za-z0-9_:#/@-]{1,64}", re.ASCII)
"""Names of made queues come from users and tags, which have more characters than configured queues."""

_AS_PROVIDED: Final = (PlacementRule(PROVIDED),)
"""Without rules: the queue that is asked for has to be there."""


class Submission(NamedTuple):
    """Submission as rules see it; `queue` is the one that the application names, if any."""

    queue: str
    user: str
    groups: frozenset[str]
    tags: Mapping[str, str]


class Placed(NamedTuple):
    """The leaf of the application; `created` are the queues to be made for it, from the uppermost down."""

    path: str
    created: tuple[tuple[str, QueueSettings], ...] = ()


def place_application(partition: PartitionSettings, tree: QueueTree, submission: Submission) -> Placed:
    """Return the queue of an application.

    Raises Refused, saying what each rule that was for it came to: ENOENT where no queue is for it, another error where
    one is that it may not have.
    """
    refusals: list[tuple[PlacementRule, Refused]] = []
    for rule in partition.rules or _AS_PROVIDED:
        try:
            path = _path_of(rule, tree, submission)
            if path is not None:
                return _placed(partition, tree, submission, path)
        except Refused as refusal:
            refusals.append((rule, refusal))
    reasons = "; ".join([f"rule {rule}: {refusal}" for rule, refusal in refusals])
    found = [refusal.errnum for _, refusal in refusals if refusal.errnum != errno.ENOENT]
    raise Refused(reasons or "no placement rule is for it", found[0] if found else errno.ENOENT)


def place_shared(partition: PartitionSettings, tree: QueueTree) -> Placed:
    """Return the leaf of asks without an application, to be made if it is not there. Raises Refused."""
    queue = tree.queue(SHARED_QUEUE)
    if queue is not None and queue.is_leaf and not queue.draining:
        return Placed(SHARED_QUEUE)
    return _placed(partition, tree, Submission(SHARED_QUEUE, "", frozenset(), {}), SHARED_QUEUE)


def place_recovered(tree: QueueTree) -> Placed:
    """Return the leaf of an application of which something runs already; rules, lists and limits have no say."""
    if tree.queue(RECOVERY_QUEUE) is not None:
        return Placed(RECOVERY_QUEUE)
    return Placed(RECOVERY_QUEUE, ((RECOVERY_QUEUE, QueueSettings(RECOVERY_NAME)),))


def with_tags(settings: QueueSettings, tags: Mapping[str, str]) -> QueueSettings:
    """Return the settings of a made queue with what the tags of an application say of them.

    Raises Refused for a tag that cannot be read.
    """
    changes: dict[str, Any] = {}
    if maximum := _resource_tag(tags, QUOTA_TAG):
        changes["maximum"] = maximum
    if guaranteed := _resource_tag(tags, GUARANTEED_TAG):
        changes["guaranteed"] = tuple([each for each in guaranteed if each[1]])
    if applications := tags.get(APPLICATIONS_TAG, ""):
        if re.fullmatch(r"[0-9]{1,10}", applications, re.ASCII) is None or int(applications) > COUNT_MAX:
            what = f"give a whole number within 0 and {COUNT_MAX}"
            raise Refused(f"tag {APPLICATIONS_TAG} is {shown(applications)}: {what}", errno.EINVAL)
        changes["max_applications"] = int(applications)
    return replace(settings, **changes) if changes else settings


def make_queue(tree: QueueTree, placed: Placed) -> Queue:
    """Return the leaf of a placed application, made if it has to be. Raises InvalidValue where the tree is full."""
    for path, settings in placed.created:
        tree.create(path, settings)
    queue = tree.queue(placed.path)
    if queue is None:
        raise InvalidValue(f"queue {shown(placed.path)} was removed after the application was placed")
    return queue


def may_submit(partition: PartitionSettings, queue: Queue, user: str, groups: frozenset[str]) -> bool:
    """Return whether the user may submit to the queue: its lists allow it, or those of a queue above."""
    if partition.is_open:
        return True
    found = [partition.access[each.path] for each in queue.up() if each.path in partition.access]
    return any(each.submit.allows(user, groups) or each.admin.allows(user, groups) for each in found)


# ---- what a rule names


def _path_of(rule: PlacementRule, tree: QueueTree, submission: Submission) -> str | None:
    """Return the full path that the rule names, None if it is not for this application. Raises Refused."""
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
    if path == RECOVERY_QUEUE:
        raise Refused(f"queue {path} is reserved for recovered applications", errno.EPERM)
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
    """Return the access of the next configured queue above, or of the queue itself; the root is one."""
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
            maximum=template.maximum,
            max_applications=template.max_applications,
        )
        made.append((path, with_tags(settings, submission.tags) if is_leaf else settings))
    return tuple(made)


def _resource_tag(tags: Mapping[str, str], tag: str) -> Amounts:
    """Return the amounts that came as a tag, () without."""
    text = tags.get(tag, "")
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
        raise Refused(f"tag {tag} is no Resource: {fault}", errno.EINVAL) from None


def _quantity(kind: str, quantity: object) -> int:
    """`{"value": 10}`; JSON of protobuf writes the number as a text."""
    value = quantity.get("value", 0) if isinstance(quantity, dict) else quantity
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value, re.ASCII):
        value = int(value)
    if type(value) is not int or not 0 <= value <= AMOUNT_MAX:
        raise InvalidValue(f"{shown(kind)} is {shown(value)}: give a value within 0 and {AMOUNT_MAX}")
    return value


# ---- groups of users

GROUPS_KEPT_S: Final = 60.0
"""Time for which the groups of a user are not looked up again (seconds): a user database may be far away."""

USERS_KEPT_MAX = 10_000
"""Users whose groups are kept at a time."""


class UserGroups:
    """The groups of a user in the host's database, kept for a while."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._kept: dict[str, tuple[float, tuple[str, ...]]] = {}

    def __call__(self, user: str) -> Sequence[str]:
        """Their names; none for a user whom the host does not know."""
        now_s = self._elapsed_s()
        until_s, groups = self._kept.get(user, (now_s, ()))
        if until_s <= now_s:
            if len(self._kept) >= USERS_KEPT_MAX:
                self._kept.clear()
            groups = groups_of_host(user)
            self._kept[user] = now_s + GROUPS_KEPT_S, groups
        return groups


def groups_of_host(user: str) -> tuple[str, ...]:
    """Return the names of a user's groups on this host, the primary one first."""
    try:
        found = pwd.getpwnam(user)
        ids = os.getgrouplist(user, found.pw_gid)
    except (KeyError, ValueError, OSError):  # unknown, a NUL in the name, no database
        return ()
    names = []
    for gid in ids:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return tuple(names)
