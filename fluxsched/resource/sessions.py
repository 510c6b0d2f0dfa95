"""Reports to each acquirer about its group, from which the next one follows (RFC 28; dialects: rfc/acquisition.md).

Law: a group has at most one acquirer, and an acquirer counts a target from its grow until its shrink (plain) or its
release (typed). At the end of every call it is sent the difference to the last report, nothing of leaving targets.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator

from fluxsched.core.group_change import GroupChange, GroupState, difference, with_own_topology
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.resource.effects import ToAcquirer
from fluxsched.resource.journal import Outbox
from fluxsched.resource.state.groups import DEFAULT, EXCLUDE, Groups
from fluxsched.resource.state.inventory import Targets, are


class Session:
    """One acquisition: `targets` is what it may use, `unreleased` what it has yet to release."""

    def __init__(self, acquirer: Hashable, group: str, typed: bool, reported: GroupState) -> None:
        self.acquirer = acquirer
        self.group = group
        self.typed = typed
        self.targets = reported.targets
        self.unreleased = EMPTY
        self.reported = reported

    @property
    def counts(self) -> Idset:
        """Return the targets that the acquirer must be presumed to use."""
        return self.targets | self.unreleased

    def leave(self, targets: Idset) -> None:
        """Targets start to leave the group; those that were never reported to it are ignored."""
        leaving = targets & self.targets
        self.targets -= leaving
        if self.typed:
            self.unreleased |= leaving

    def change(self, resources: ResourceSet, members: Idset, usable: Idset) -> GroupChange | None:
        """Return the change since the last report; the plain dialect has no grow, so targets that join are not
        reported.
        """
        if self.typed:
            self.targets = members
        before = self.reported
        self.reported = GroupState(resources, self.targets, self.targets & usable)
        return difference(before, self.reported)


class Sessions:
    """The acquisitions by group, and everything that is reported to them."""

    def __init__(self, targets: Targets, groups: Groups, out: Outbox) -> None:
        self._targets = targets
        self._groups = groups
        self._out = out
        self._of: dict[str, Session] = {}

    def get(self, group: str) -> Session | None:
        """The acquisition of a group."""
        return self._of.get(group)

    @property
    def unreleased(self) -> Idset:
        """Targets that acquirers have yet to release."""
        owed = EMPTY
        for session in self:
            owed |= session.unreleased
        return owed

    def __iter__(self) -> Iterator[Session]:
        return iter(self._of.values())

    def of(self, acquirer: Hashable, group: str | None) -> list[Session]:
        """The acquisitions of a peer, or its one of `group`."""
        mine = [session for session in self if session.acquirer == acquirer]
        return [session for session in mine if group in (None, session.group)]

    def open(self, acquirer: Hashable, group: str | None, typed: bool, usable: Idset) -> None:
        """A new acquisition, and its first response.

        Raises, checked in this order: RemoteProtocolError for a dialect without its group, Refused with EPERM for
        `exclude`, ENOENT for a group that does not exist, EBUSY for one that is acquired already.
        """
        if typed != (group is not None):
            raise RemoteProtocolError("a typed acquire names a group, a plain one does not: give {'group': NAME} or {}")
        name = DEFAULT if group is None else group
        if name == EXCLUDE:
            raise Refused(f"group {name!r} cannot be acquired: its targets are excluded from scheduling", errno.EPERM)
        members = self._groups.targets_of(name)
        if name in self._of:
            raise Refused(f"group {name!r} is acquired already: one acquirer a group, disconnect it first", errno.EBUSY)
        resources = self._targets.resources
        shared = resources.shared if name == DEFAULT else ()  # what belongs to no target is in one place: never twice
        online, grow = members & usable, resources.restrict(members).with_shared(shared)
        self._of[name] = Session(acquirer, name, typed, GroupState(resources, members, online))
        incomplete = not members and name in self._groups.mirrors
        change = GroupChange(with_own_topology(grow), EMPTY, online, members - online, incomplete=incomplete)
        self._out.put(ToAcquirer(acquirer, change, name))

    def close(self, session: Session) -> None:
        """The acquisition is over and its group may be acquired again."""
        del self._of[session.group]

    def release(self, acquirer: Hashable, group: str, targets: Idset) -> None:
        """A typed acquirer does not count these targets any more.

        Raises RemoteProtocolError (EPROTO) naming the targets when it may not release them; nothing changes then.
        """
        session, what = self._of.get(group), f"release of {self._targets.describe(targets)} from group {group!r}"
        if session is None or session.acquirer != acquirer:
            raise RemoteProtocolError(f"{what}: this peer has not acquired that group; acquire it first")
        if not session.typed:
            raise RemoteProtocolError(f"{what}: a plain acquire has no release; acquire with a group for it")
        if wrong := targets - session.unreleased:
            fault = f"{self._targets.describe(wrong)} {are(wrong)} not leaving it"
            raise RemoteProtocolError(f"{what}: {fault}; release only what a shrink named, once")
        session.unreleased -= targets

    def leave(self, group: str, targets: Idset) -> None:
        """Targets start to leave the group."""
        session = self._of.get(group)
        if session is not None:
            session.leave(targets)

    def report(self, usable: Idset) -> None:
        """Tell every acquirer what changed in its group since the last report."""
        resources, members = self._targets.resources, self._groups.members
        for session in self._of.values():
            change = session.change(resources, members[session.group], usable)
            if change is not None:
                self._out.put(ToAcquirer(session.acquirer, change, session.group))

    def check(self, usable: Idset) -> None:
        """Assert that at most one acquirer counts a target, and that its present state was reported."""
        seen = EMPTY
        for session in self:
            assert seen.isdisjoint(session.counts), "two acquirers count one target"
            assert session.targets.isdisjoint(session.unreleased), "a target is leaving and usable at once"
            seen |= session.counts
            members, targets = self._groups.members[session.group], session.targets
            assert targets == members if session.typed else targets <= members, "its targets are not the group's"
            assert session.unreleased <= self._groups.leaving[session.group], "a release is owed for nothing"
            assert session.reported.targets == targets, "the targets of an acquirer were not reported"
            assert session.reported.online == targets & usable, "the usable targets of an acquirer were not reported"

