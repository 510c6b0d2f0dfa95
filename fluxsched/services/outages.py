"""Planned outages, as administrators ask for them, and the timer that begins and ends them.

Law: the resource module decides what is due; here it is called when it is, as the wall clock says. A timer that goes
off early, since the wall clock was set back, is set again.
"""

from __future__ import annotations

from math import inf

from fluxsched.core.idset import Idset
from fluxsched.core.outages import Outage
from fluxsched.errors import InvalidValue
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages.resource import (
    OutageAddRequest,
    OutageAddResponse,
    OutageRemoveRequest,
    OutagesResponse,
    OutageUpdateRequest,
    PlannedOutage,
)
from fluxsched.resource.outages import OutageRecord
from fluxsched.services.resource import ResourceService
from fluxsched.system.loop import Timer, Turns

LOOK_MAX_S = 3600.0
"""The wall clock is looked at so often at least while an outage is ahead, since it may be set."""


class OutageService:
    """Service of the four `resource.outage-*` requests: begins and ends outages on time."""

    def __init__(self, resource: ResourceService, router: Router, turns: Turns) -> None:
        self._resource = resource
        self._turns = turns
        self._timer: Timer | None = None
        self._set_for_s = inf
        resource.changed.append(self.look)
        router.serve({
            "resource.outage-add": self._add,
            "resource.outage-update": self._update,
            "resource.outage-remove": self._remove,
            "resource.outage-list": self._list,
        })  # fmt: skip

    def look(self) -> None:
        """Set the timer for what is due next, if that has changed."""
        next_s = self._resource.module.outages.next_s
        if next_s == self._set_for_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._set_for_s, self._timer = next_s, None
        if next_s < inf:
            delay_s = min(max(next_s - self._turns.wall_s, 0.0), LOOK_MAX_S)
            self._timer = self._turns.after(delay_s, self._advance)

    def _advance(self) -> None:
        self._set_for_s, self._timer = inf, None
        self._resource.perform(self._resource.module.advance_outages(self._turns.wall_s))

    def _add(self, request: RpcRequest) -> None:
        wanted = request.payload(OutageAddRequest)
        module, now_s = self._resource.module, self._turns.wall_s
        until_s = wanted.until
        if until_s is None:
            if wanted.for_ is None:
                raise InvalidValue("an outage has an end: give either `until` or `for`")
            until_s = wanted.from_ + wanted.for_
        outage = Outage(
            module.outages.name_for(wanted.name), self._targets(wanted.targets), wanted.from_, until_s, wanted.every,
            wanted.reason,
        )  # fmt: skip
        self._resource.perform(module.add_outage(outage, request.who, now_s))
        self._resource.answer(request, OutageAddResponse(outage.name))

    def _update(self, request: RpcRequest) -> None:
        wanted, module = request.payload(OutageUpdateRequest), self._resource.module
        before = module.outages.get(wanted.name).outage
        from_s = before.from_s if wanted.from_ is None else wanted.from_
        lasts_s = before.until_s - before.from_s if wanted.for_ is None else wanted.for_
        moves_end = wanted.until is None and (wanted.for_ is not None or wanted.from_ is not None)
        until_s = from_s + lasts_s if moves_end else before.until_s if wanted.until is None else wanted.until
        outage = before._replace(
            targets=before.targets if wanted.targets is None else self._targets(wanted.targets),
            from_s=from_s,
            until_s=until_s,
            every_s=before.every_s if wanted.every is None else wanted.every,
            reason=before.reason if wanted.reason is None else wanted.reason,
        )
        self._resource.perform(module.update_outage(outage, request.who, self._turns.wall_s))
        self._resource.answer(request)

    def _remove(self, request: RpcRequest) -> None:
        name = request.payload(OutageRemoveRequest).name
        self._resource.perform(self._resource.module.remove_outage(name, request.who, self._turns.wall_s))
        self._resource.answer(request)

    def _list(self, request: RpcRequest) -> None:
        records = sorted(self._resource.module.outages, key=lambda record: record.outage.from_s)
        request.respond(OutagesResponse([_message(record) for record in records]))

    def _targets(self, text: str) -> Idset:
        targets = self._resource.targets(text, self._resource.module.targets.present)
        if not targets:
            raise InvalidValue(f"cannot plan an outage of {text}: there are no such targets")
        return targets


def _message(record: OutageRecord) -> PlannedOutage:
    outage = record.outage
    return PlannedOutage(
        name=outage.name, targets=str(outage.targets), from_=outage.from_s, until=outage.until_s,
        every=outage.every_s or None, reason=outage.reason, user=record.user, on=record.is_on,
        configured=record.is_configured,
    )  # fmt: skip
