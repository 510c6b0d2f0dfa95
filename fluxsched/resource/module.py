"""Facade of the resource module, a method for each request: who owns a target, and whether it may be used (RFC 28, 44).

Law: every method checks everything first and raises without a change, or changes its state and returns effects for the
shell to perform in order. Times are seconds since the epoch and come as arguments. What is asked and what follows from
it (drain, move, arrival) are one step. `ResourceReport` (`resource.status`, `resource.sched-status`, groups) changes
nothing, and equal lines are merged; the shapes are those of Flux, with our own keys beside them.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import Outage
from fluxsched.core.resources import EMPTY_R, Properties, ResourceSet
from fluxsched.core.topology import EMPTY_TOPOLOGY
from fluxsched.errors import InvalidValue, Refused
from fluxsched.resource.changes import (
    Moves,
    Presence,
    Restorer,
    Session,
    Sessions,
    check_owners,
    lift_for_move,
    plan_reload,
    refuse_held,
    with_mirror,
)
from fluxsched.resource.drain import Drains, Monitor, TargetUse, reason_is
from fluxsched.resource.effects import HISTORY_EVENTS_MAX, AcquisitionEnded, Outbox, RaiseJobs, ResourceEffect, Saved
from fluxsched.resource.inventory import (
    DEFAULT,
    EXCLUDE,
    SPARES,
    Groups,
    GroupView,
    Inventory,
    PropertyOverrides,
    Targets,
    split,
)
from fluxsched.resource.outages import PlannedOutages
from fluxsched.resource.parts import PartDrains, PartsRequest, down_parts, of_parts
from fluxsched.resource.spares import SpareTargets


class MoveState(NamedTuple):
    """State of a move: done, leaving (shrunk or held), or drained and waiting for its jobs (graceful)."""

    moved: Idset
    leaving: Idset
    draining: Idset


class ResourceReport:
    """Status of targets, groups and moves, for people and tools; nothing here changes anything."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        sessions: Sessions,
        moves: Moves,
        drains: Drains,
        parts: PartDrains,
        monitor: Monitor,
        target_use: TargetUse,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._sessions = sessions
        self._moves = moves
        self._drains = drains
        self._parts = parts
        self._monitor = monitor
        self._target_use = target_use

    @property
    def online(self) -> Idset:
        """Return the targets whose agents are there, torpid ones included."""
        return self._monitor.online

    def status(self) -> dict[str, Any]:
        """Return the values of a `resource.status` response: R with the lost targets (so that their hosts can be
        named), the drain lines by idset, and a set for every state.
        """
        present = self._targets.present
        return {
            "R": self._targets.resources,
            "drain": self._drains.report(present, self._target_use.held),
            "online": self._monitor.online,
            "offline": present - self._monitor.online,
            "exclude": self._groups.members[EXCLUDE],
            "torpid": self._monitor.torpid,
            "lost": self._targets.lost,
            "groups": dict(self._groups.members),
        }

    def states(self) -> dict[str, Idset]:
        """Return the targets by state (rfc/live.md), each in the first that applies; some sets may be empty.

        Takes time linear in bits of the sets, not in targets.
        """
        held, ranks, found = self._target_use.held, self._targets.resources.ranks, dict[str, Idset]()
        drained = self._drains.drained | self._parts.exhausted
        left = ranks
        for name, those in (
            ("lost", self._targets.lost),
            ("excluded", self._groups.members[EXCLUDE]),
            ("offline", ranks - self._monitor.online),
            ("draining", drained & held),
            ("drained", drained),
            ("torpid", self._monitor.torpid),
            ("leaving", EMPTY if self._groups.nothing_moves else self._groups.all_leaving),
            ("spare", self._groups.members.get(SPARES, EMPTY)),
            ("allocated", held),
        ):
            found[name] = left & those
            left -= those
        found["free"] = left
        return found

    def sched_status(self, allocated: ResourceSet = EMPTY_R) -> dict[str, ResourceSet]:
        """Return the values of `resource.sched-status`: all that schedulers may get (not excluded, lost or spare),
        what of it is down, and what is allocated, down to the core, which the job manager knows; and what is withheld
        of the same targets, if there is any.
        """
        kept = self._groups.members[EXCLUDE] | self._groups.members.get(SPARES, EMPTY)
        everything = self._targets.resources.restrict(self._targets.present - kept)
        everything = everything.with_topology(EMPTY_TOPOLOGY)  # `resource.status` tells it, to those who ask
        total = everything.with_shared(self._targets.resources.shared)
        usable = self._moves.usable
        down = everything.without(usable) | down_parts(everything.restrict(usable), self._parts)
        found = {"all": total, "down": down, "allocated": allocated}
        withheld = of_parts(everything, self._targets.withheld)
        return found | {"withheld": withheld} if withheld else found

    def groups(self) -> list[GroupView]:
        """Return every group, in the order in which they were made."""
        views = []
        for name in self._groups.names:
            session = self._sessions.get(name)
            dialect = None if session is None else "typed" if session.typed else "plain"
            views.append(self._groups.view(name, None if session is None else session.acquirer, dialect))
        return views

    def settled(self, targets: Idset, group: str | None) -> Idset:
        """Return the targets that have no move to make to this group, or (None) to their configured one."""
        goals = self._groups.configured if group is None else {group: targets}
        there = EMPTY
        for name, part in split(goals, targets):
            goal = DEFAULT if group is None and name == EXCLUDE else name
            there |= part & self._groups.members.get(goal, EMPTY)
        return there - self._groups.waiting

    def move_state(self, targets: Idset) -> MoveState:
        """Return the state of the move of these targets."""
        leaving, draining = targets & self._groups.all_leaving, targets & self._groups.waiting
        return MoveState(targets - leaving - draining, leaving, draining)

    def ending(self, targets: Idset) -> list[int]:
        """Return the jobs on those of these targets that their scheduler has been told to give back."""
        return self._target_use.jobs_on(targets & self._sessions.unreleased)


# ---- the module


class ResourceModule:
    """The facade: one method a request or event, each returning its effects."""

    def __init__(
        self,
        inventory: Inventory,
        groups: Mapping[str, Idset],
        saved: Iterable[Saved] = (),
        *,
        now_s: float,
        online: Idset = EMPTY,
        mirrors: Iterable[str] = (),
        outages: Iterable[Outage] = (),
        history_events_max: int = HISTORY_EVENTS_MAX,
    ) -> None:
        rows = list(saved)
        self.started_s = self.withheld_s = now_s
        self.journal = out = Outbox((row.value for row in rows if row.table == "journal"), history_events_max)
        self.targets = Targets(inventory)
        self._groups = Groups(self.targets, groups, mirrors)
        self.targets.require(online, "start online")
        self._monitor = Monitor(out, online)
        self._drains = Drains(self.targets, out)
        self.parts = PartDrains(self.targets, out)
        self._target_use = TargetUse()
        self._overrides = PropertyOverrides(self.targets, out)
        self._sessions = Sessions(self.targets, self._groups, out)
        self._moves = Moves(
            self.targets, self._groups, self._sessions, self._target_use, self._drains, self.parts, self._monitor, out
        )
        self.report = ResourceReport(
            self.targets, self._groups, self._sessions, self._moves, self._drains, self.parts, self._monitor,
            self._target_use,
        )  # fmt: skip
        restorer = Restorer(self.targets, self._groups, self._drains, self.parts, self._overrides, self._moves, out)
        restorer.load(rows)
        self.outages = PlannedOutages(self.targets, self._groups, self._drains, self.parts, self._assign, out)
        for row in rows:
            if row.table == "outage":
                self.outages.restore(row.key, row.value)
        self.outages.configure(outages, now_s)
        self.spares = SpareTargets(
            self.targets, self._groups, self._drains, self.parts, self._monitor, self._moves, rows, out
        )
        self._presence = Presence(
            self.targets, self._groups, self._monitor, self._drains, self._moves, self._overrides, restorer, out
        )
        self.targets.replace(self._overrides.applied(self.resources, self.resources.ranks))

    def start(self, now_s: float) -> list[ResourceEffect]:
        """Begin, once the jobs that still run hold their targets: journal what there is, let stored moves go on."""
        ranks = self.resources.ranks
        context = {"ranks": str(ranks), "online": str(self._monitor.online), "nodelist": self.targets.nodelist(ranks)}
        self.journal.post(now_s, "restart", context)
        self.journal.post(now_s, "resource-define", {"method": self.targets.method})
        self._drains.lift(self._groups.members[EXCLUDE], "excluded", None, now_s)
        self._moves.settle(self._groups.moving, now_s)
        lift_for_move(self._drains, ranks - self._groups.moving, "the move is over", None, now_s)
        self.outages.advance(now_s)
        self.outages.lift_strays(now_s)
        return self._done(ranks, now_s)

    # ---- acquirers (RFC 28)

    def acquire(self, acquirer: Hashable, group: str | None, typed: bool) -> list[ResourceEffect]:
        """Acquire a group; `group` is None in the plain dialect. Raises like `Sessions.open`: EPERM, ENOENT, EBUSY."""
        self._sessions.open(acquirer, group, typed, self._moves.usable)
        return self._done(EMPTY, None)

    def release(self, acquirer: Hashable, group: str, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Record that a typed acquirer gives leaving targets back. Raises RemoteProtocolError (EPROTO) naming those it
        may not.
        """
        self._sessions.release(acquirer, group, targets)
        self._moves.settle(targets, now_s)
        return self._done(targets, now_s)

    def disconnect(self, acquirer: Hashable, now_s: float) -> list[ResourceEffect]:
        """Record that an acquirer is lost, or cancels: its groups are free again, running jobs stay.

        Jobs on what it had still to release are raised exceptions by the instance, since it cannot any more.
        """
        touched = EMPTY
        for session in self._sessions.of(acquirer):
            self._sessions.close(session)
            self._raise_for(session)
            text = f"acquire of group {session.group!r} ended"
            self.journal.put(AcquisitionEnded(acquirer, errno.ENODATA, text, session.group))
            leaving = self._groups.leaving[session.group]
            self._moves.settle(leaving, now_s)
            touched |= leaving
        return self._done(touched, now_s)

    # ---- administration

    def drain(
        self, targets: Idset, reason: str | None, mode: str | None, user: str | None, now_s: float, until_s: float = inf
    ) -> list[ResourceEffect]:
        """No new jobs on these targets, until then. Raises like `Drains.drain`, naming all offenders, and does nothing
        then.
        """
        self._drains.drain(targets, reason, mode, user, now_s, self._groups.members[EXCLUDE], until_s)
        return self._done(EMPTY, now_s)

    def undrain(
        self, targets: Idset, reason: str | None, mode: str | None, user: str | None, now_s: float,
        only: str | None = None,
    ) -> list[ResourceEffect]:  # fmt: skip
        """Return new jobs again, or lift one reason (`only`). A graceful move that drained a target goes on all the
        same; assign it back to call it off.
        """
        self._drains.undrain(targets, reason, mode, user, now_s, only)
        return self._done(EMPTY, now_s)

    def drained_for(self, reason: str | None) -> Idset:
        """Return the targets that are drained for this reason, perhaps for others, too; None: for any."""
        return self._drains.having(self._drains.drained, reason_is(reason))

    def undrain_good(self, targets: Idset, reason: str, user: str, now_s: float) -> list[ResourceEffect]:
        """Lift the drains of a program that finds targets good again."""
        self._drains.lift(targets, reason, user, now_s, which=lambda each: each.source == ("program", user))
        return self._done(EMPTY, now_s)

    def drain_parts(self, wanted: PartsRequest) -> list[ResourceEffect]:
        """Take some cores and GPUs of targets out of use. Raises like `PartDrains.drain`."""
        self.parts.drain(wanted)
        return self._done(EMPTY, wanted.now_s)

    def undrain_parts(self, wanted: PartsRequest) -> list[ResourceEffect]:
        """Return cores and GPUs of targets to use. Raises like `PartDrains.undrain`."""
        self.parts.undrain(wanted)
        return self._done(EMPTY, wanted.now_s)

    def add_outage(self, outage: Outage, user: str | None, now_s: float) -> list[ResourceEffect]:
        """Plan an outage. Raises like `PlannedOutages.add`."""
        self.outages.add(outage, user, now_s)
        return self._done(self.resources.ranks, now_s)

    def update_outage(self, outage: Outage, user: str | None, now_s: float) -> list[ResourceEffect]:
        """Replace the outage of this name. Raises like `PlannedOutages.update`."""
        self.outages.update(outage, user, now_s)
        return self._done(self.resources.ranks, now_s)

    def remove_outage(self, name: str, user: str | None, now_s: float) -> list[ResourceEffect]:
        """Call an outage off. Raises like `PlannedOutages.remove`."""
        self.outages.remove(name, user, now_s)
        return self._done(self.resources.ranks, now_s)

    def advance_outages(self, now_s: float) -> list[ResourceEffect]:
        """Begin and end the outages that are due, and end the drains that are; none is before `outages.next_s`."""
        self.outages.advance(now_s)
        return self._done(self.resources.ranks, now_s)

    def assign(
        self, targets: Idset, group: str, now_s: float, graceful: bool = False, user: str | None = None
    ) -> list[ResourceEffect]:
        """Move targets to a group, which is created if needed; without targets it is only created.

        Graceful: those that a job holds are drained now and move when no job holds them; the drain made for it is
        undone then. Raises InvalidValue naming all targets that are unknown or lost.
        """
        self.targets.require(targets, f"assign to group {group!r}")
        check_owners(self.targets, self._groups, targets, group)
        self.spares.check_assign(targets, group)
        self._groups.check_new(group)
        self._assign(targets, group, graceful, user, now_s)
        return self._done(targets, now_s)

    def include(
        self, targets: Idset, now_s: float, graceful: bool = False, user: str | None = None
    ) -> list[ResourceEffect]:
        """Return targets to their configured group, or to `default` if that is `exclude`. Raises like `assign`."""
        self.targets.require(targets, "include")
        for group, part in split(self._groups.configured, targets):
            self._assign(part, DEFAULT if group == EXCLUDE else group, graceful, user, now_s)
        return self._done(targets, now_s)

    def property_add(self, properties: Properties, now_s: float) -> list[ResourceEffect]:
        """Give targets properties. Raises InvalidValue naming all offenders."""
        return self._change_properties(properties, True, now_s)

    def property_remove(self, properties: Properties, now_s: float) -> list[ResourceEffect]:
        """Take properties from targets. Raises InvalidValue naming all offenders, those without it among them."""
        return self._change_properties(properties, False, now_s)

    def set_expiration(self, expiration_s: float, now_s: float) -> list[ResourceEffect]:
        """Return the resources end at another time (seconds since the epoch, 0 for never). Raises InvalidValue."""
        before = self.resources
        after = before.with_expiration(before.starttime_s, expiration_s)
        if after.expiration_s != before.expiration_s:
            self.targets.replace(after)
            self._post_expiration(before, now_s)
        return self._done(EMPTY, now_s)

    def reload(
        self,
        inventory: Inventory,
        groups: Mapping[str, Idset],
        now_s: float,
        force: bool = False,
        outages: Iterable[Outage] | None = None,
    ) -> list[ResourceEffect]:
        """Another R and configuration; `groups` and `outages` are in its ranks. None: those that are planned stay.

        Raises like `plan_reload`, and EBUSY unless forced.
        """
        plan = plan_reload(self.targets, self._groups, inventory, groups)
        if not force:
            refuse_held(plan, self.targets, self._groups, self._target_use.held)
        before, present = self.resources, self.targets.present
        admission = self.targets.admit(inventory.resources)
        ours = admission.ours
        self._presence.reload(plan, now_s)
        if outages is not None:
            self.outages.configure([each._replace(targets=ours(each.targets)) for each in outages], now_s)
        self.outages.joined(self.targets.present - present, now_s)
        self.outages.advance(now_s)
        self._post_expiration(before, now_s)
        self.targets.method, self.targets.dynamic = inventory.method, inventory.dynamic
        withheld = inventory.withheld.renumbered(admission.renumbered)
        if withheld != self.targets.withheld:
            self.targets.withheld, self.withheld_s = withheld, now_s
        self.journal.post(now_s, "resource-define", {"method": inventory.method})
        return self._done(self.resources.ranks, now_s)

    def mirror(self, group: str, theirs: ResourceSet, now_s: float) -> list[ResourceEffect]:
        """Targets of another instance are the whole of `group` from now on. Raises LimitExceeded without free ranks."""
        found = with_mirror(self.targets, self._groups.configured, group, theirs)
        return [] if found is None else self.reload(*found, now_s, force=True)

    def reload_faults(self, inventory: Inventory, groups: Mapping[str, Idset], *, force: bool) -> list[str]:
        """Return the reasons for which `reload` would refuse, a sentence each; nothing changes."""
        try:
            plan = plan_reload(self.targets, self._groups, inventory, groups)
            if not force:
                refuse_held(plan, self.targets, self._groups, self._target_use.held)
        except (InvalidValue, Refused) as fault:
            return [str(fault)]
        return []

    # ---- targets come and go

    def set_online(self, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Their agents are there. Raises InvalidValue naming the unknown and the lost: those must be added first."""
        self.targets.require(targets, "set online")
        self._monitor.set_online(targets, now_s)
        return self._done(EMPTY, now_s)

    def set_offline(self, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Their agents are gone. Raises InvalidValue naming unknown targets."""
        self._require_seen(targets, "set offline")
        self._monitor.set_offline(targets, now_s)
        return self._done(EMPTY, now_s)

    def set_torpid(self, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Online, but silent for too long. Raises InvalidValue naming unknown targets."""
        self._require_seen(targets, "set torpid")
        self._monitor.set_torpid(targets, now_s)
        return self._done(EMPTY, now_s)

    def set_lively(self, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Heard from again. Raises InvalidValue naming unknown targets."""
        self._require_seen(targets, "set lively")
        self._monitor.set_lively(targets, now_s)
        return self._done(EMPTY, now_s)

    def set_lost(self, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Gone for good as far as we know: they leave to no group. Only in a dynamic inventory, else InvalidValue."""
        self._require_seen(targets, "set lost")
        if not self.targets.dynamic:
            raise InvalidValue(f"cannot lose {self.targets.describe(targets)}: the inventory is not dynamic; reload it")
        self._presence.lose(targets - self.targets.lost, now_s)
        return self._done(targets, now_s)

    def add_targets(self, resources: ResourceSet, now_s: float) -> list[ResourceEffect]:
        """Targets that an agent brings: lost ones return with their old rank and group, others are new, in `default`;
        all are offline at first, and known ones stay as they are.

        Raises InvalidValue for a static inventory, Refused (EEXIST) naming all known ones that look different.
        """
        admitted, present = self.targets.admit(resources).resources, self.targets.present
        joined = admitted.ranks - present
        if joined and not self.targets.dynamic:
            hosts = admitted.restrict(joined).nodelist
            raise InvalidValue(f"cannot add {hosts}: the inventory is not dynamic; reload it")
        if other := self.targets.changed(admitted) & present:
            described = self.targets.describe(other)
            raise Refused(f"cannot add {described}: there already, with other resources; reload them", errno.EEXIST)
        return self.join(admitted.restrict(joined), now_s) if joined else self._done(EMPTY, now_s)

    def join(self, joining: ResourceSet, now_s: float) -> list[ResourceEffect]:
        """Targets in our own ranks, new or lost, none of them present; all are offline at first."""
        self._presence.join(joining, now_s)
        self.outages.joined(joining.ranks, now_s)
        return self._done(joining.ranks, now_s)

    # ---- jobs

    def hold(self, jobid: int, targets: Idset) -> list[ResourceEffect]:
        """Record that a job holds these targets, from the moment its scheduler's success arrives."""
        self._target_use.add(jobid, targets)
        return []

    def unhold(self, jobid: int, targets: Idset, now_s: float) -> list[ResourceEffect]:
        """Return the stored `release` of a job names these targets. Raises LocalProtocolError if it does not hold
        them.
        """
        idle = self._target_use.drop(jobid, targets)
        freed = EMPTY if not idle or self._groups.nothing_moves else self._groups.moving & Idset.of(idle)
        if not freed:
            return []
        self._moves.settle(freed, now_s)
        return self._done(freed, now_s)

    # ---- reads

    @property
    def resources(self) -> ResourceSet:
        """R of all targets ever seen, the lost ones included, so that their hosts can be named."""
        return self.targets.resources

    @property
    def lost(self) -> Idset:
        """Return the targets that are lost (dynamic inventories only)."""
        return self.targets.lost

    @property
    def held(self) -> Idset:
        """Return the targets that jobs hold."""
        return self._target_use.held

    @property
    def drained(self) -> Idset:
        """Drained targets, without lost ones."""
        return self._drains.drained & self.targets.present

    @property
    def drainable(self) -> Idset:
        """Targets that a drain can be asked for: all but the lost and the excluded."""
        return self.targets.present - self._groups.members[EXCLUDE]

    def usable(self, group: str) -> Idset:
        """Return the targets of a group that are online, lively and not drained. Raises Refused (ENOENT)."""
        return self._groups.targets_of(group) & self._moves.usable

    def targets_of_group(self, name: str) -> Idset:
        """Return the targets of a group without those that leave it. Raises Refused (ENOENT)."""
        return self._groups.targets_of(name)

    def group_of(self, target: int) -> str | None:
        """Return the group that owns a target, also while it leaves; None when it is lost and has left."""
        return self._groups.group_of(target)

    def foreign(self, groups: Iterable[str], targets: Idset) -> Idset:
        """Return the targets that a scheduler of these groups must not allocate: they belong to other groups."""
        for name in groups:
            targets -= self._groups.owned(name)
        return targets

    def check(self) -> None:
        """Assert the laws on the whole state (nothing is held twice): for tests and the simulator."""
        self._groups.check()
        self._target_use.check()
        self._sessions.check(self._moves.usable)
        self.spares.check()
        assert self._drains.drained.isdisjoint(self._groups.members[EXCLUDE]), "an excluded target is drained"
        assert self._monitor.torpid <= self._monitor.online <= self.targets.present, "an absent target is online"

    # ---- within

    def _done(self, touched: Idset, now_s: float | None) -> list[ResourceEffect]:
        """End a call; at a time, if what it did may call for spares, or send them home."""
        spares = EMPTY if now_s is None else self.spares.settle(now_s)
        self._sessions.outages, self._sessions.parts = self.outages.value, self.parts.value
        self._sessions.spares = self.spares.value
        self._moves.finish(touched | spares if spares else touched)
        return self.journal.take_effects()

    def _require_seen(self, targets: Idset, purpose: str) -> None:
        self.targets.require(targets - self.targets.lost, purpose)

    def _raise_for(self, session: Session) -> None:
        jobids = self._target_use.raise_once(session.unreleased)
        if jobids:
            held = session.unreleased & self._target_use.held
            note = f"{self.targets.describe(held)} left group {session.group!r} and its scheduler is gone"
            self.journal.put(RaiseJobs(held, jobids, note))

    def _assign(self, targets: Idset, group: str, graceful: bool, user: str | None, now_s: float) -> None:
        if group not in self._groups:
            self._groups.make(group)
            self.journal.save("group", group, {})
        for rank, name in self._groups.assign(targets, group):
            self.journal.save("assign", self.targets.key(rank), None if name is None else {"group": name})
        affected = self._affected(targets, group, graceful)
        if affected:
            nodelist = self.targets.nodelist(affected)
            context = {"idset": str(affected), "nodelist": nodelist, "group": group, "graceful": graceful}
            self.journal.post(now_s, "assign", context if user is None else context | {"user": user})
        self._moves.to(group, targets, graceful, user, now_s)

    def _affected(self, targets: Idset, group: str, graceful: bool) -> Idset:
        """Targets for which being assigned changes anything."""
        affected = targets - self._groups.goals[group]
        return affected if graceful else affected | (targets & self._groups.waiting)

    def _change_properties(self, properties: Properties, add: bool, now_s: float) -> list[ResourceEffect]:
        self._overrides.change(properties, add, now_s)
        return self._done(EMPTY, now_s)

    def _post_expiration(self, before: ResourceSet, now_s: float) -> None:
        if self.resources.expiration_s != before.expiration_s:
            self.journal.post(now_s, "resource-update", {"expiration": self.resources.expiration_s})
