"""What each acquirer has been told, and so what it must hear next (RFC 28; both dialects: rfc/acquisition.md).

Law: a group has at most one acquirer, and an acquirer counts a target from the first or a grow until its shrink (plain)
or its release (typed). It hears of usable targets only by difference to what it heard last, never of leaving ones.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.resource.effects import Availability, Change, First, Grow, Properties, Shrink, ToAcquirer, Update
from fluxsched.resource.journal import Outbox
from fluxsched.resource.state.groups import DEFAULT, EXCLUDE, Groups
from fluxsched.resource.state.inventory import Targets


class Session:
    """One acquisition: `told` is what it may use, `owing` what it was told to release, `up` what it thinks usable."""

    def __init__(self, acquirer: Hashable, group: str, typed: bool, accept_update: bool) -> None:
        self.acquirer = acquirer
        self.group = group
        self.typed = typed
        self.told = EMPTY
        self.owing = EMPTY
        self.up = EMPTY
        self._accept_update = accept_update or not typed

    @property
    def counts(self) -> Idset:
        """What it must be presumed to use."""
        return self.told | self.owing

    def first(self, resources: ResourceSet, usable: Idset) -> Change:
        """All that the group has for it."""
        self.told, self.up = resources.ranks, resources.ranks & usable
        return First(resources, self.up, self.told - self.up)

    def grow(self, resources: ResourceSet, usable: Idset) -> Change:
        """Targets that have joined the group."""
        joined = resources.ranks
        self.told |= joined
        self.up |= joined & usable
        return Grow(resources, joined & usable, joined - usable)

    def shrink(self, targets: Idset) -> Change | None:
        """Targets that start to leave the group; None if it never heard of them."""
        leaving = targets & self.told
        self.told -= leaving
        self.up -= leaving
        if self.typed:
            self.owing |= leaving
        return Shrink(leaving) if leaving else None

    def availability(self, usable: Idset) -> Change | None:
        """What changed since it heard last; None if nothing did."""
        up = self.told & usable
        if up == self.up:
            return None
        change = Availability(up - self.up, self.up - up)
        self.up = up
        return change

    def update(self, expiration_s: float | None, added: Properties, removed: Properties) -> Change | None:
        """Changes of R within what it was told; None if there are none or it does not accept them."""
        mine = [{name: part for name, ids in table.items() if (part := ids & self.told)} for table in (added, removed)]
        if not self._accept_update or (expiration_s is None and not any(mine)):
            return None
        return Update(expiration_s, *mine)


class Sessions:
    """The acquisitions by group, and everything that is said to them."""

    def __init__(self, targets: Targets, groups: Groups, out: Outbox) -> None:
        self._targets = targets
        self._groups = groups
        self._out = out
        self._of: dict[str, Session] = {}

    def get(self, group: str) -> Session | None:
        """Who acquired a group."""
        return self._of.get(group)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._of.values())

    def of(self, acquirer: Hashable, group: str | None) -> list[Session]:
        """The acquisitions of a peer, or its one of `group`."""
        mine = [session for session in self if session.acquirer == acquirer]
        return [session for session in mine if group in (None, session.group)]

    def open(self, acquirer: Hashable, group: str | None, typed: bool, accept_update: bool, usable: Idset) -> None:
        """A new acquisition, and its first response.

        Raises, checked in this order: RemoteProtocolError for a dialect without its group, Refused with EPERM for
        `exclude`, ENOENT for a group that does not exist, EBUSY for one that somebody has acquired.
        """
        if typed != (group is not None):
            raise RemoteProtocolError("a typed acquire names a group, a plain one does not: give {'group': NAME} or {}")
        name = DEFAULT if group is None else group
        if name == EXCLUDE:
            raise Refused(f"group {name!r} cannot be acquired: its targets are excluded from scheduling", errno.EPERM)
        members = self._groups.targets_of(name)
        if name in self._of:
            raise Refused(f"group {name!r} is acquired already: one acquirer a group, disconnect it first", errno.EBUSY)
        session = self._of[name] = Session(acquirer, name, typed, accept_update)
        resources = self._targets.resources
        shared = resources.shared if name == DEFAULT else ()  # what belongs to no target is in one place: never twice
        self._tell(session, session.first(resources.restrict(members).with_shared(shared), usable))

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
        if wrong := targets - session.owing:
            described = self._targets.describe(wrong)
            raise RemoteProtocolError(f"{what}: {described} not leaving it; release only what a shrink named, once")
        session.owing -= targets

    def shrink(self, group: str, targets: Idset) -> None:
        """Tell the group's acquirer, if any, that targets leave."""
        session = self._of.get(group)
        if session is not None:
            self._tell(session, session.shrink(targets))

    def grow(self, group: str, targets: Idset, usable: Idset) -> None:
        """Tell the group's acquirer that targets have joined; a plain one has no word for that."""
        session = self._of.get(group)
        if session is not None and session.typed:
            self._tell(session, session.grow(self._targets.resources.restrict(targets), usable))

    def announce(self, usable: Idset) -> None:
        """Tell every acquirer which of its targets became usable or unusable."""
        for session in self:
            self._tell(session, session.availability(usable))

    def update(self, before: ResourceSet, after: ResourceSet) -> None:
        """Tell every acquirer what changed from one R to the next, on the same targets."""
        expiration_s = None if before.expiration_s == after.expiration_s else after.expiration_s
        added, removed = _more(after, before, before.ranks), _more(before, after, before.ranks)
        if expiration_s is not None or added or removed:
            for session in self:
                self._tell(session, session.update(expiration_s, added, removed))

    def _tell(self, session: Session, change: Change | None) -> None:
        if change is not None:
            self._out.put(ToAcquirer(session.acquirer, change, session.group))

    def check(self, usable: Idset) -> None:
        """Assert that at most one acquirer counts a target, and that it has heard how things are."""
        seen = EMPTY
        for session in self:
            assert seen.isdisjoint(session.counts), "two acquirers count one target"
            assert session.told.isdisjoint(session.owing), "a target is leaving and usable at once"
            seen |= session.counts
            members = self._groups.members[session.group]
            assert session.told == members if session.typed else session.told <= members, "told is not what it owns"
            assert session.owing <= self._groups.leaving[session.group], "a release is owed for nothing"
            assert session.up == session.told & usable, "an acquirer has not heard what is usable"


def _more(one: ResourceSet, other: ResourceSet, among: Idset) -> dict[str, Idset]:
    """Properties that `one` has and `other` has not, on targets `among`: new ones come with a grow."""
    pairs = ((name, (ids & among) - other.properties.get(name, EMPTY)) for name, ids in one.properties.items())
    return {name: ids for name, ids in pairs if ids}
