"""Reports to acquirers, as differences (`Session`), and changes of the inventory and of its groups: moves, reloads,
restarts, presence, mirrors.

Reports: a group has at most one acquirer, and an acquirer counts a target from its grow until its shrink (plain) or its
release (typed). At the end of every call it is sent the difference to the last report, nothing of leaving targets (RFC
28; dialects: rfc/acquisition.md).

Moves: nothing leaves a group while a job holds it, nor before the typed acquirer that was told to shrink has released
it or is lost; only then does the next group grow. The one shortcut: a target that returns to the group it was leaving
is a member again at once if that group is not acquired.

Reloads: what another R or configuration would change is worked out before anything does. Hosts keep ranks, drains and
assignments. What vanished is lost; a target whose cores or GPUs changed leaves and comes home again with the new ones;
both and a change of group wait like any move. If a job holds such a target the reload is refused, naming all of them
and why, unless it is forced.

Restarts: stored rows find their targets again by host, whatever rank these have now. A row whose host is not there yet
stays in the store and applies when the host joins. No group is acquired then, so stored moves wait for jobs alone.

Presence: what a dynamic inventory or a reload loses leaves to no group and is remembered; what returns is its old self,
drained and assigned as before. A target that returns before it has left must still be released, and is then grown again
like any other. A mirrored target of another instance keeps its rank here, like every target, and belongs to the group
of its cluster alone.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import NO_OUTAGES, Outages, seen_by
from fluxsched.core.resources import NO_SPARES, GroupChange, GroupState, ResourceSet, difference, with_own_topology
from fluxsched.core.rlite import NO_PARTS, PartsByRank
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError
from fluxsched.resource.drain import Drain, Drains, Monitor, TargetUse
from fluxsched.resource.effects import Outbox, Saved, StoredRow, ToAcquirer
from fluxsched.resource.inventory import (
    DEFAULT,
    EXCLUDE,
    SPARES,
    Groups,
    Inventory,
    PropertyOverrides,
    Targets,
    are,
    check_configured,
    key_host,
    split,
)
from fluxsched.resource.parts import PartDrains


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

    def begin_leaving(self, targets: Idset) -> None:
        """Targets start to leave the group; those that were never reported to it are ignored."""
        leaving = targets & self.targets
        self.targets -= leaving
        if self.typed:
            self.unreleased |= leaving

    def change(
        self, resources: ResourceSet, members: Idset, usable: Idset, outages: Outages, parts: PartsByRank,
        spares: Mapping[int, int],
    ) -> GroupChange | None:  # fmt: skip
        """Return the change since the last report; the plain dialect has no grow, so targets that join are not
        reported.
        """
        if self.typed:
            self.targets = members
        before = self.reported
        mine = spares_in(self.targets, spares)
        self.reported = GroupState(resources, self.targets, self.targets & usable, outages, parts, mine)
        return difference(before, self.reported)


class Sessions:
    """The acquisitions by group, and everything that is reported to them."""

    def __init__(self, targets: Targets, groups: Groups, out: Outbox) -> None:
        self._targets = targets
        self._groups = groups
        self._out = out
        self._of: dict[str, Session] = {}
        self.outages = NO_OUTAGES
        self.parts = NO_PARTS
        self.spares = NO_SPARES

    def get(self, group: str) -> Session | None:
        """Return the acquisition of a group."""
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

    def of(self, acquirer: Hashable) -> list[Session]:
        """Return the acquisitions of an acquirer."""
        return [session for session in self if session.acquirer == acquirer]

    def open(self, acquirer: Hashable, group: str | None, typed: bool, usable: Idset) -> None:
        """Begin an acquisition, and send its first response.

        Raises, checked in this order: RemoteProtocolError for a dialect without its group, Refused with EPERM for
        `exclude`, ENOENT for a group that does not exist, EBUSY for one that is acquired already.
        """
        if typed != (group is not None):
            raise RemoteProtocolError("a typed acquire names a group, a plain one does not: give {'group': NAME} or {}")
        name = DEFAULT if group is None else group
        if name in (EXCLUDE, SPARES):
            why = "excluded from scheduling" if name == EXCLUDE else "spares, which join the group of what they replace"
            raise Refused(f"group {name!r} cannot be acquired: its targets are {why}", errno.EPERM)
        members = self._groups.targets_of(name)
        if name in self._of:
            holder = self._of[name].acquirer
            raise Refused(f"group {name!r} is acquired already by {holder}, which must end first", errno.EBUSY)
        resources = self._targets.resources
        shared = resources.shared if name == DEFAULT else ()  # what belongs to no target is in one place: never twice
        online, grow = members & usable, resources.restrict(members).with_shared(shared)
        known = seen_by(self.outages, name)
        spares = spares_in(members, self.spares)
        reported = GroupState(resources, members, online, known, self.parts, spares)
        self._of[name] = Session(acquirer, name, typed, reported)
        incomplete = not members and name in self._groups.mirrors
        outages, parts = known or None, self.parts or None
        shares = online, members - online
        change = GroupChange(
            with_own_topology(grow), EMPTY, *shares, None, {}, {}, None, incomplete, outages, parts, spares or None
        )
        self._out.put(ToAcquirer(acquirer, change, name))

    def close(self, session: Session) -> None:
        """Record that the acquisition is over and its group may be acquired again."""
        del self._of[session.group]

    def release(self, acquirer: Hashable, group: str, targets: Idset) -> None:
        """Record that a typed acquirer does not count these targets any more.

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

    def begin_leaving(self, group: str, targets: Idset) -> None:
        """Targets start to leave the group."""
        session = self._of.get(group)
        if session is not None:
            session.begin_leaving(targets)

    def report(self, usable: Idset) -> None:
        """Tell every acquirer what changed in its group since the last report."""
        resources, members = self._targets.resources, self._groups.members
        for session in self._of.values():
            known = seen_by(self.outages, session.group)
            change = session.change(resources, members[session.group], usable, known, self.parts, self.spares)
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


def spares_in(targets: Idset, spares: Mapping[int, int]) -> Mapping[int, int]:
    """Return those of the spares that are among the targets."""
    return {rank: replaced for rank, replaced in spares.items() if rank in targets} if spares else NO_SPARES


# ---- moves


class Moves:
    """The one place where a target changes its group."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        sessions: Sessions,
        target_use: TargetUse,
        drains: Drains,
        parts: PartDrains,
        monitor: Monitor,
        out: Outbox,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._sessions = sessions
        self._parts = parts
        self._target_use = target_use
        self._drains = drains
        self._monitor = monitor
        self._out = out
        self._rows: dict[int, dict[str, Any]] = {}

    @property
    def usable(self) -> Idset:
        """Online and lively and not drained, wherever it belongs."""
        return self._monitor.available - self._drains.drained - self._parts.exhausted

    def to(self, goal: str, targets: Idset, graceful: bool, user: str | None, now_s: float) -> None:
        """Targets shall belong to `goal`.

        Settled ones start leaving now or, graceful, are drained and leave once no job holds them. For leaving ones
        only the destination changes.
        """
        groups, members = self._groups, self._groups.members
        groups.aim(targets, goal)
        home = targets & members[goal] & groups.waiting
        groups.waiting -= home
        lift_for_move(self._drains, home, "the move was called off", user, now_s)
        moving = targets - groups.all_leaving - members[goal]
        if graceful:
            drain = Drain(now_s, f"moving to group {goal}", user, for_move=True)
            self._drains.add((moving & self._target_use.held) - members[EXCLUDE], drain)  # nobody schedules these
            groups.waiting |= moving
        else:
            self.begin(moving)
        self.settle(targets, now_s)

    def begin(self, targets: Idset) -> None:
        """Targets start leaving their groups: the acquirers of these are sent a shrink."""
        for name, part in split(self._groups.members, targets):
            self._groups.begin_leaving(name, part)
            self._sessions.begin_leaving(name, part)

    def settle(self, candidates: Idset, now_s: float) -> None:
        """Let those of them move on that nothing holds back any more."""
        groups = self._groups
        self.begin((groups.waiting & candidates) - self._target_use.held)
        arrived: dict[str | None, Idset] = {}
        for source, part in split(groups.leaving, candidates):
            for goal, some in self._headed(part):
                ready = self._ready(source, goal, some)
                if ready:
                    groups.arrive(source, goal, ready)
                    self._post_release(source, goal, ready, now_s)
                    arrived[goal] = arrived.get(goal, EMPTY) | ready
        for goal, part in arrived.items():
            self._settled(goal, part, now_s)

    def settle_new(self, targets: Idset) -> None:
        """Targets that no group owned are settled where they belong."""
        self._groups.join(targets, self._target_use.held)

    def finish(self, touched: Idset) -> None:
        """End a call: report changes to the acquirers, and store moves as they are now."""
        self._sessions.report(self.usable)
        moving = self._groups.moving
        for rank in touched & (moving | Idset.of(self._rows)):
            row = self._row(rank) if rank in moving else None
            if row != self._rows.get(rank):
                self._out.save("leaving", self._targets.key(rank), row)
                if row is None:
                    del self._rows[rank]
                else:
                    self._rows[rank] = row

    def restore(self, rank: int, source: str, graceful: bool) -> None:
        """Take up a stored move: the target is in `source` still. Where it belongs, the groups know."""
        groups, target = self._groups, Idset.of([rank])
        for name in groups.names:
            groups.members[name] -= target
        if graceful and rank not in groups.goals[source]:
            groups.members[source] |= target
            groups.waiting |= target
        else:
            groups.leaving[source] |= target
        self._rows[rank] = {}  # unlike any row: it is stored again as it stands, or deleted

    def _headed(self, leaving: Idset) -> list[tuple[str | None, Idset]]:
        """Leaving targets by where they go; the lost ones go nowhere."""
        lost = leaving & self._targets.lost
        here: list[tuple[str | None, Idset]] = list(split(self._groups.goals, leaving - lost))
        return [*here, (None, lost)] if lost else here

    def _ready(self, source: str, goal: str | None, leaving: Idset) -> Idset:
        session = self._sessions.get(source)
        if session is None and goal == source:
            return leaving
        return leaving - self._target_use.held - (EMPTY if session is None else session.unreleased)

    def _settled(self, goal: str | None, arrived: Idset, now_s: float) -> None:
        drains = self._drains
        if goal == EXCLUDE:
            drains.lift(arrived, "excluded", None, now_s)
        else:
            lift_for_move(drains, arrived, f"moved to group {goal}" if goal else "lost", None, now_s)

    def _post_release(self, source: str, goal: str | None, targets: Idset, now_s: float) -> None:
        context = {"idset": str(targets), "nodelist": self._targets.nodelist(targets), "from": source}
        self._out.post(now_s, "release", context if goal is None else context | {"group": goal})

    def _row(self, rank: int) -> dict[str, Any]:
        source, goal = self._groups.group_of(rank), self._groups.goal_of(rank)
        return {"from": source, "to": goal, "graceful": rank in self._groups.waiting}


# ---- reloads


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """A reload in our ranks: `resources` with the lost targets, the checked configuration, and the targets affected."""

    resources: ResourceSet
    configured: Mapping[str, Idset]
    vanished: Idset
    changed: Idset
    returned: Idset
    fresh: Idset
    regrouped: Mapping[str, Idset]


def plan_reload(targets: Targets, groups: Groups, inventory: Inventory, configured: Mapping[str, Idset]) -> ReloadPlan:
    """Return the plan of a reload; `configured` is in the ranks of the new inventory.

    Raises InvalidValue like a start would.
    """
    check_configured(inventory.resources, configured)  # in its own ranks: the text must name what the person wrote
    admission = targets.admit(inventory.resources)
    admitted = admission.resources
    merged = targets.merged(admitted)
    ours = {name: admission.ours(ranks) for name, ranks in configured.items()}
    for name, absent in split(groups.configured, merged.ranks - admitted.ranks):
        if name != DEFAULT:  # the lost stay configured as they were, for their return
            ours[name] = ours.get(name, EMPTY) | absent
    checked = check_configured(merged, ours)
    groups.check_new(*checked)
    present, fresh = targets.present, admitted.ranks - targets.resources.ranks
    free = (admitted.ranks - fresh) - Idset.of(groups.assigned)
    astray = {name: (ranks & free) - groups.goals.get(name, EMPTY) for name, ranks in checked.items()}
    given = inventory.resources
    return ReloadPlan(
        resources=merged.with_expiration(given.starttime_s, given.expiration_s).with_topology(given.topology),
        configured=checked,
        vanished=present - admitted.ranks,
        changed=targets.changed(admitted) & present,
        returned=targets.lost & admitted.ranks,
        fresh=fresh,
        regrouped={name: part for name, part in astray.items() if part},
    )


def refuse_held(plan: ReloadPlan, targets: Targets, groups: Groups, held: Idset) -> None:
    """Raise Refused (EBUSY) naming all held targets that the plan would take away from their jobs."""
    faults = []
    for part, why in ((plan.vanished & held, "not in the new R"), (plan.changed & held, "with other resources there")):
        if part:
            faults.append(f"{targets.describe(part)} {why}")
    for name, part in plan.regrouped.items():
        if busy := part & held - groups.members.get(name, EMPTY):
            faults.append(f"{targets.describe(busy)} going to group {name!r}")
    if faults:
        raise Refused(f"cannot reload while jobs hold {'; '.join(faults)}; wait for them, or force it", errno.EBUSY)


# ---- restarts


class Restorer:
    """The rows that have not found their target."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        drains: Drains,
        parts: PartDrains,
        overrides: PropertyOverrides,
        moves: Moves,
        out: Outbox,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._drains = drains
        self._parts = parts
        self._overrides = overrides
        self._moves = moves
        self._out = out
        self._waiting: dict[str, dict[str, StoredRow]] = {}

    def load(self, saved: Iterable[Saved]) -> None:
        """Take up all rows of targets and groups at the start."""
        for table, key, value in saved:
            if table == "group":
                self._groups.make(key)
            elif table not in ("journal", "outage"):
                self._waiting.setdefault(key, {})[table] = value
        self.apply_rows(self._targets.resources.ranks, moves=True)
        if not self._targets.dynamic:
            self._substitute_drains()

    def apply_rows(self, ranks: Idset, moves: bool = False) -> None:
        """Apply the rows of these targets, which are not acquired: assigned ones are settled there.

        `moves`: stored moves continue; those of a host that joins later are dropped, since nothing holds it.
        """
        found = [(rank, self._waiting.pop(key)) for rank in ranks if (key := self._targets.key(rank)) in self._waiting]
        assigned: dict[str, list[int]] = {}
        for rank, tables in found:
            if "drain" in tables:
                self._drains.restore(rank, tables["drain"])
            if "parts" in tables:
                self._parts.restore(rank, tables["parts"])
            if "property" in tables:
                self._overrides.restore(rank, tables["property"])
            if "assign" in tables:
                assigned.setdefault(tables["assign"]["group"], []).append(rank)
        for group, ranks_there in assigned.items():
            self._assign(group, Idset.of(ranks_there))
        for rank, tables in found:
            if "leaving" in tables:
                self._move(rank, tables["leaving"], moves)

    def _assign(self, group: str, targets: Idset) -> None:
        groups = self._groups
        groups.make(group)
        groups.assigned.update(dict.fromkeys(targets, group))
        groups.aim(targets, group)
        for name in groups.names:
            settled = groups.members[name] & targets
            groups.members[name] -= settled
            groups.members[group] |= settled

    def _move(self, rank: int, row: StoredRow, moves: bool) -> None:
        if moves:
            self._groups.make(row["from"])
            self._moves.restore(rank, row["from"], bool(row.get("graceful", False)))
        else:
            self._out.save("leaving", self._targets.key(rank), None)

    def _substitute_drains(self) -> None:
        """Give the drain of a target that its host no longer has to the host's first target (RFC 44, drain)."""
        for key, tables in list(self._waiting.items()):
            rank = self._targets.rank(key_host(key))
            if rank is None or "drain" not in tables:
                continue
            if rank not in self._drains.drained:
                self._drains.restore(rank, tables["drain"])
                self._out.save("drain", self._targets.key(rank), dict(tables["drain"]))
            self._waiting[key] = {table: row for table, row in tables.items() if table != "drain"}
            self._out.save("drain", key, None)


def lift_for_move(drains: Drains, targets: Idset, why: str, user: str | None, now_s: float) -> None:
    """Lift the drains of graceful moves that have ended."""
    drains.lift(targets, why, user, now_s, which=lambda each: each.for_move)


# ---- presence


class Presence:
    """Changes which targets there are; callers have checked that they may."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        monitor: Monitor,
        drains: Drains,
        moves: Moves,
        overrides: PropertyOverrides,
        restorer: Restorer,
        out: Outbox,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._monitor = monitor
        self._drains = drains
        self._moves = moves
        self._overrides = overrides
        self._restorer = restorer
        self._out = out

    def lose(self, targets: Idset, now_s: float) -> None:
        """Mark targets as offline and remove them from their groups, into no other."""
        if targets:
            self._monitor.set_offline(targets, now_s)
            self._targets.lost |= targets
            self._post("lost", targets, now_s)
            self._moves.begin(targets)
            self._moves.settle(targets, now_s)

    def join(self, joining: ResourceSet, now_s: float) -> None:
        """Add new and returned targets, none of which is present; the new ones are in `default`."""
        fresh = joining.ranks - self._targets.resources.ranks
        self._targets.add(joining)
        self._arrive(joining.ranks, fresh, {DEFAULT: fresh}, now_s)

    def reload(self, plan: ReloadPlan, now_s: float) -> None:
        """Shrink what changed, take R and groups over, move the rest, welcome what is new, lose what vanished.

        Arrivals are reported to acquirers before departures, so that a replaced group is never empty.
        """
        self._moves.begin(plan.changed)
        self._targets.replace(self._overrides.applied(plan.resources, plan.resources.ranks))
        self._groups.reconfigure({name: ranks - plan.fresh for name, ranks in plan.configured.items()})
        for group, part in plan.regrouped.items():
            self._moves.to(group, part, False, None, now_s)
        joined = plan.fresh | plan.returned
        if joined:
            self._arrive(joined, plan.fresh, plan.configured, now_s)
        self.lose(plan.vanished, now_s)
        self._monitor.gone -= plan.vanished  # taken out of the site, not failed
        self._moves.settle(plan.changed, now_s)

    def _arrive(self, joined: Idset, fresh: Idset, configured: Mapping[str, Idset], now_s: float) -> None:
        """R has them already: stored rows apply, live properties apply, and groups grow."""
        self._targets.lost -= joined
        self._groups.adopt(fresh, configured)
        self._restorer.apply_rows(fresh)
        lift_for_move(self._drains, fresh - self._groups.moving, "the move is over", None, now_s)
        self._targets.replace(self._overrides.applied(self._targets.resources, joined))
        self._post("join", joined, now_s)
        self._drains.lift(joined & self._groups.goals[EXCLUDE], "excluded", None, now_s)
        self._moves.settle_new(joined - self._groups.all_leaving)
        self._moves.settle(joined, now_s)

    def _post(self, name: str, targets: Idset, now_s: float) -> None:
        self._out.post(now_s, name, {"idset": str(targets), "nodelist": self._targets.nodelist(targets)})


# ---- mirrors of another instance's targets


def with_mirror(
    targets: Targets, configured: Mapping[str, Idset], group: str, theirs: ResourceSet
) -> tuple[Inventory, dict[str, Idset]] | None:
    """Return the inventory and its groups with `theirs`, in whatever ranks, as the whole of `group`; None if they
    are.
    """
    admitted = targets.admit(theirs).resources
    mine = configured.get(group, EMPTY) & targets.present
    whole = targets.resources
    if admitted.ranks == mine and not targets.changed(admitted) and _describes(whole, admitted):
        return None
    rest = whole.restrict(targets.present - configured.get(group, EMPTY))
    groups = {name: ranks & rest.ranks for name, ranks in configured.items() if name not in (DEFAULT, group)}
    added, ranks = joined(rest, theirs, above=targets.resources.ranks)
    former = set(whole.hosts(configured.get(group, EMPTY)).hosts)
    kept = whole.topology.restrict([host for host in whole.topology.leaf_of if host not in former])
    added = added.with_topology(kept | theirs.topology)
    return Inventory(added, targets.method, targets.dynamic, targets.withheld), groups | {group: ranks}


def _describes(known: ResourceSet, admitted: ResourceSet) -> bool:
    """Return whether these targets are known with the properties and switches that they have now."""
    mine, hosts = known.restrict(admitted.ranks).job_view(), admitted.nodelist.hosts
    if mine.properties != admitted.properties:
        return False
    return known.topology.restrict(hosts) == admitted.topology.restrict(hosts)


def with_mirrors(
    inventory: Inventory, groups: Mapping[str, Idset], mirrors: Iterable[tuple[str, ResourceSet]]
) -> tuple[Inventory, dict[str, Idset]]:
    """Return the inventory of a start or a reload with all mirrored targets behind it; those that have ranks keep them
    if no other target has them.
    """
    whole, found = inventory.resources, dict(groups)
    for group, theirs in mirrors:
        whole, found[group] = joined(whole, theirs)
    return replace(inventory, resources=whole), found


def check_owners(targets: Targets, groups: Groups, moving: Idset, group: str) -> None:
    """Raise InvalidValue if targets of a cluster are to be moved to a group, or others to that of a cluster."""
    for name in sorted(groups.mirrors):
        mine = moving & groups.configured.get(name, EMPTY)
        if name == group and moving - mine:
            text = f"group {name!r} has the targets of cluster {name!r} and no others"
            raise InvalidValue(f"cannot assign {targets.describe(moving - mine)}: {text}")
        if name != group and mine:
            text = f"cannot assign {targets.describe(mine)}: of cluster {name!r}, in whose group they stay"
            remedy = "drain them, or exclude them there" if group == EXCLUDE else "assign targets of this instance"
            raise InvalidValue(f"{text}; {remedy}")


def joined(whole: ResourceSet, theirs: ResourceSet, above: Idset = EMPTY) -> tuple[ResourceSet, Idset]:
    """Both, and the ranks of `theirs`: other ones above all that there are, where theirs are taken."""
    if not theirs:
        return whole, EMPTY
    if theirs.ranks & (whole.ranks | above):
        theirs = theirs.rerank((whole.ranks | above).max() + 1)
    both = whole | theirs
    return both.with_expiration(whole.starttime_s, whole.expiration_s).with_shared(whole.shared), theirs.ranks
