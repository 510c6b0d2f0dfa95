"""`resource.watch`: the state of every target and how many of its cores and GPUs are held, whole, then what is new.

Law: without a stream nothing is gathered. With streams, all that jobs change within WATCH_EVERY_S is one look at the
targets that changed, however many jobs changed them; what it found is worded once for all readers who know the same.
What is done to targets themselves is shown sooner, as long as looks take little of the time. A slow reader's changes
merge, so what is kept for one is bounded by the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.jobs.holdings.holdings import Holdings
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.live.machine import MachineChange
from fluxsched.protocol.messages.resource import DrainInfo
from fluxsched.resource.state.groups import GroupView
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router, forget
from fluxsched.runtime.services.resource import ResourceService, drain_lines, group_info
from fluxsched.runtime.services.slow_readers import SlowReaders

WATCH_EVERY_S = 0.1
"""The least time between two looks at what jobs changed: people see no more, and first answers of that time share them.
"""

CHANGE_EVERY_S, SHARE = 0.02, 0.1
"""The least time after a target was drained, went down or moved, which its administrator waits to see; and the share of
time that such looks may take, where they are not as rare as those at jobs by then.
"""

_KINDS = {"busy": "core", "busy_gpus": "gpu"}



class Look(NamedTuple):
    """What was found; sets are values, so that two looks are compared quickly."""

    resources: ResourceSet
    states: dict[str, Idset]
    drained: frozenset[int]
    drains: dict[str, DrainInfo]
    groups: list[GroupView]
    made_up: Idset


class MachineReader:
    """One stream: what its reader has been told, and the targets whose number of busy cores or GPUs is news to it."""

    __slots__ = ("recounted", "told")

    def __init__(self) -> None:
        self.told: Look | None = None
        self.recounted: dict[str, frozenset[int]] = {}

    def recount(self, key: str, changed: frozenset[int]) -> None:
        """Some more of them. Those who have nothing else to be told share one set."""
        before = self.recounted.get(key)
        self.recounted[key] = before | changed if before else changed


class ResourceWatch:
    """Serves `resource.watch`."""

    def __init__(self, service: ResourceService, holdings: Holdings, router: Router, turns: Turns) -> None:
        self._service = service
        self._module = service.module
        self._holdings = holdings
        self._turns = turns
        self._slow = SlowReaders(router, turns)
        self._readers: dict[RpcRequest, MachineReader] = {}
        self._behind = False
        """Whether some reader has not been told of the last look."""
        self._is_stale = False
        self._touched: list[Idset] = []
        self._counts: dict[str, dict[int, int]] = {}
        """By kind and target how many jobs held at the last look; none where it was none."""
        self._last: Look | None = None
        self._next_s = self._soon_s = 0.0
        self._timer: Timer | None = None
        self._timer_s = 0.0
        service.changed.append(self._note_change)
        service.watch_streams = lambda: len(self._readers)
        router.serve({"resource.watch": self._open})
        turns.at_end(self._publish)

    def __len__(self) -> int:
        return len(self._readers)

    def note_jobs(self, ranks: Idset) -> None:
        """A job holds more or less on these targets than before."""
        if self._readers:
            self._touched.append(ranks)

    def _note_change(self) -> None:
        self._is_stale = True

    def _open(self, request: RpcRequest) -> None:
        request.open_stream(lambda: self._end(request))
        if not self._readers:
            self._is_stale = True
            self._counts = {key: self._count(kind) for key, kind in _KINDS.items()}
        self._readers[request] = MachineReader()
        self._behind = True

    def _end(self, request: RpcRequest) -> None:
        forget(self._readers, request)
        if not self._readers:
            self._last, self._counts, self._touched, self._behind = None, {}, [], False

    # -- looking ------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """End-of-turn hook."""
        if not self._readers or not (self._touched or self._is_stale or self._behind):
            return
        due_s = self._soon_s if self._is_stale else self._next_s
        if self._timer is not None and self._timer.call is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        clock = self._turns.clock
        now_s = clock.monotonic_s()
        if now_s < due_s:
            self._timer, self._timer_s = self._turns.after(due_s - now_s, self._turns.wake), due_s
            return
        if self._touched or self._is_stale:
            self._look()
        self._tell()
        took_s = clock.monotonic_s() - now_s
        self._next_s = now_s + WATCH_EVERY_S
        self._soon_s = min(self._next_s, now_s + max(CHANGE_EVERY_S, took_s / SHARE))

    def _look(self) -> None:
        touched = self._take_touched()
        for key, changed in self._recount(touched).items():
            for reader in self._readers.values():
                reader.recount(key, changed)
        before, is_stale, self._is_stale = self._last, self._is_stale, False
        states = self._module.states()
        if before is not None and not is_stale and before.drained.isdisjoint(touched):
            self._last = before if states == before.states else before._replace(states=states)
            return
        status = self._module.status()  # a job that ends leaves a target drained that was draining
        resources = status["R"]
        self._last = Look(
            resources,
            states,
            frozenset(chain.from_iterable(status["drain"])),
            drain_lines(status),
            self._module.groups(),
            self._service.made_up(resources),
        )

    def _take_touched(self) -> set[int]:
        """The targets on which jobs began or ended: mostly one each."""
        touched, self._touched = self._touched, []
        found: set[int] = set()
        for ranks in touched:
            only = ranks.single()
            if only is None:
                found.update(ranks)
            else:
                found.add(only)
        return found

    def _count(self, kind: str) -> dict[int, int]:
        return {rank: mask.bit_count() for rank, mask in self._holdings.busy(kind).items()}

    def _recount(self, touched: set[int]) -> dict[str, frozenset[int]]:
        """Count anew on these targets; those where it is another number now."""
        found: dict[str, frozenset[int]] = {}
        for key, kind in _KINDS.items():
            busy, counts, changed = self._holdings.busy(kind), self._counts[key], list[int]()
            if not busy and not counts:
                continue
            for rank in touched:
                now = busy.get(rank, 0).bit_count()
                if now != counts.get(rank, 0):
                    changed.append(rank)
                    if now:
                        counts[rank] = now
                    else:
                        del counts[rank]
            if changed:
                found[key] = frozenset(changed)
        return found

    # -- telling ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        now, self._behind = self._last, False
        assert now is not None, "there was a look"
        worded: dict[tuple[int, ...], msgspec.Raw | None] = {}
        for request, reader in self._readers.items():
            if self._slow.must_wait(request.peer):
                self._behind = True
                continue
            known: tuple[int, ...] = ()
            if reader.told is not None:
                known = id(reader.told), *map(id, reader.recounted.values())
            if known not in worded:
                worded[known] = self._word(reader, now)
            answer = worded[known]
            if answer is not None:
                request.respond(answer)
            reader.told, reader.recounted = now, {}

    def _word(self, reader: MachineReader, now: Look) -> msgspec.Raw | None:
        """What is news to a reader; None if nothing is."""
        told = reader.told
        if told is None:
            found = self._whole(now)
        else:
            found = {key: self._by_count(key, ranks) for key, ranks in reader.recounted.items()}
            if told is not now:
                found |= self._differences(told, now)
        return msgspec.Raw(codec.pack(MachineChange(**found))) if found else None

    def _whole(self, now: Look) -> dict[str, Any]:
        return {
            "R": self._service.printed(now.resources),
            "states": {name: str(ranks) for name, ranks in now.states.items() if ranks},
            **{key: self._by_count(key, counts) for key, counts in self._counts.items()},
            "drains": now.drains,
            "groups": [group_info(group) for group in now.groups],
            "made_up": str(now.made_up),
        }

    def _differences(self, told: Look, now: Look) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if told.states != now.states:
            changed = [(name, ranks - told.states[name]) for name, ranks in now.states.items()]
            if states := {name: str(ranks) for name, ranks in changed if ranks}:
                found["states"] = states
        if told.resources is not now.resources:
            found["R"] = self._service.printed(now.resources)
        if told.drains != now.drains:
            found["drains"] = now.drains
        if told.groups != now.groups:
            found["groups"] = [group_info(group) for group in now.groups]
        if told.made_up != now.made_up:
            found["made_up"] = str(now.made_up)
        return found

    def _by_count(self, key: str, ranks: Iterable[int]) -> dict[str, str]:
        """Targets by how many of their cores or GPUs are held.

        Written out: sets of a large machine, of which each has targets here and there, take seven times as long.
        """
        counts, found = self._counts[key], dict[int, list[str]]()
        first = last = held = -1
        for rank in sorted(ranks):
            count = counts.get(rank, 0)
            if count != held or rank != last + 1:
                if held >= 0:
                    found.setdefault(held, []).append(_run(first, last))
                first, held = rank, count
            last = rank
        if held >= 0:
            found.setdefault(held, []).append(_run(first, last))
        return {str(count): ",".join(runs) for count, runs in sorted(found.items())}


def _run(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first else str(first)
