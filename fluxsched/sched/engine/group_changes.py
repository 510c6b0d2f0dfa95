"""What a scheduler does about a change of a group that it has acquired (RFC 28)."""

from __future__ import annotations

from fluxsched.core.group_change import GroupChange
from fluxsched.sched.effects import Effect
from fluxsched.sched.engine.scheduler import Scheduler


def apply(scheduler: Scheduler, group: str, change: GroupChange, typed: bool, now_s: float) -> list[Effect]:
    """Apply the parts of a change at `now_s` (wall time, seconds), in their order; returns what follows."""
    effects: list[Effect] = []
    joined = change.joined
    if change.incomplete:
        scheduler.group(group).is_expected = True
    elif change.grow is not None:
        online, offline = change.online & joined, change.offline & joined
        effects += scheduler.grown(group, change.grow, online, offline, now_s)
    if change.shrink:
        effects += scheduler.shrunk(group, change.shrink, typed, now_s)
    if offline := change.offline - joined:
        effects += scheduler.went_offline(offline, now_s)
    if online := change.online - joined:
        effects += scheduler.went_online(online, now_s)
    if change.is_update:
        properties = change.property_add, change.property_remove
        effects += scheduler.updated(group, change.expiration_s, *properties, now_s, change.topology)
    return effects
