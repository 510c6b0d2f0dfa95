"""Planned outages of Flux's configuration: our scheduler plans around them, and Flux is asked for their drains.

Law: an outage drains, once at each begin, those of its targets that are not drained; at its end just these are
undrained, unless another one keeps them. The owner of a drain is known by its reason alone, which begins with the
outage's name: a module that is loaded again finds the drains of the one before, also those whose end it has missed or
whose outage has another reason now, and a drain that an administrator overwrites is theirs. What Flux refuses is
logged, and tried again after RETRY_S.
"""

from __future__ import annotations

from math import inf
from typing import Any

from fluxsched.config.values import OutageSettings
from fluxsched.core.constraint import parse_targets
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import Outage, Outages
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.flux.handle import LOG_ERR, BrokerHandle, BrokerReply
from fluxsched.protocol import framing

RETRY_S = 30.0
"""Pause before Flux is asked again for what it has refused (seconds)."""


def reason_of(outage: Outage) -> str:
    """Return the reason of an outage's drains."""
    return f"outage {outage.name}" + (f": {outage.reason}" if outage.reason else "")


class OutageDrains:
    """Drains of planned outages that Flux is asked for, once `plan` has been called."""

    def __init__(self, handle: BrokerHandle, settings: tuple[OutageSettings, ...]) -> None:
        self.next_s = inf
        """When the next one begins or ends, or something is tried again (seconds since the epoch)."""
        self._now_s = 0.0
        self._handle = handle
        self._settings = settings
        self._outages: list[Outage] = []
        self._begun: dict[str, float] = {}

    def plan(self, resources: ResourceSet) -> Outages | None:
        """Return the outages in terms of the resources, None if there are none, or they were planned before."""
        settings, self._settings = self._settings, ()
        for each in settings:
            try:
                targets = parse_targets(each.targets, resources)
            except InvalidValue as fault:
                self._handle.log(LOG_ERR, f"[[outages]] {each.name} is left out: {fault}")
                continue
            self._outages.append(Outage(each.name, targets, each.from_s, each.until_s, each.every_s, each.reason))
        if not settings:
            return None
        self.next_s = -inf if self._outages else inf
        return Outages(self._outages)

    def advance(self, now_s: float) -> None:
        """Have Flux drain and undrain what is due; without a call if nothing is."""
        if now_s < self.next_s:
            return
        ahead = [there for outage in self._outages if (there := outage.next(now_s)) is not None]
        on = [there for there in ahead if there.from_s <= now_s]
        self._now_s = now_s
        self.next_s = min([there.until_s if there in on else there.from_s for there in ahead], default=inf)
        self._handle.rpc("resource.status", None, lambda reply: self._compare(on, reply))

    def _compare(self, on: list[Outage], reply: BrokerReply) -> None:
        """Compare what Flux has drained with the outages that are on."""
        try:
            if reply.errnum:
                raise InvalidValue(reply.text)
            rows = framing.from_json(reply.payload, dict)["drain"].items()
            drained = [(row["reason"], Idset.parse(ranks)) for ranks, row in rows]
        except (FluxschedError, LookupError, TypeError, AttributeError) as fault:
            self._try_again(f"say what is drained: {fault}")
            return
        taken, of_reason = EMPTY, dict[str, Idset]()
        for reason, ranks in drained:
            taken |= ranks
            of_reason[reason] = of_reason.get(reason, EMPTY) | ranks
        for outage in on:
            if self._begun.get(outage.name) != outage.from_s:
                self._begun[outage.name] = outage.from_s
                self._ask("drain", outage.targets - taken, outage.name, mode="update", reason=reason_of(outage))
                taken |= outage.targets
        names_on = [outage.name for outage in on]
        for outage in self._outages:
            begins = (f"outage {outage.name}", f"outage {outage.name}: ")
            over = EMPTY
            for reason, ranks in of_reason.items() if outage.name not in names_on else ():
                if reason == begins[0] or reason.startswith(begins[1]):
                    over |= ranks
            for other in on:
                self._ask("drain", over & other.targets, mode="overwrite", reason=reason_of(other))
                over -= other.targets
            self._ask("undrain", over, mode="update")

    def _try_again(self, refused: str) -> None:
        self._handle.log(LOG_ERR, f"[[outages]]: Flux does not {refused}")
        self.next_s = min(self.next_s, self._now_s + RETRY_S)
        self._handle.after(0.0)  # for a turn, which asks for one at that time

    def _ask(self, verb: str, targets: Idset, begun: str = "", **more: Any) -> None:
        """Ask Flux; `begun` is the outage whose begin this is, and is not if Flux refuses."""
        if not targets:
            return

        def answered(reply: BrokerReply) -> None:
            if reply.errnum:
                self._begun.pop(begun, None)
                self._try_again(f"{verb} ranks {targets}: {reply.text}")

        self._handle.rpc(f"resource.{verb}", framing.to_json({"targets": str(targets), **more}), answered)
