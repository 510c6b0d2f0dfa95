"""The targets of a cluster in the resource module: its group, and which of it are online.

Law: the group follows what the other instance says, and nothing else changes it. A target that jobs of others use is
offline here; a use that is over within `OCCUPIED_S` is not noticed, since the end of a job of ours looks like one.
Where a job was not begun in time, jobs that want as many targets are not offered any for as long again: else the job
that is returned, the first in line, would come to the same place.
One that has no targets for jobs of ours any more keeps, offline, those that it had: it may have them again, and what
could never run there is known only where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.leases.mirror import Mirror, taken_by_others
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.services.resource import ResourceService
from fluxsched.runtime.system.clock import local_text

OCCUPIED_S = 1.0
"""How long targets have to be in use by others until they are offline here (seconds)."""
STORED_KIND = "cluster"
"""Of the rows of `saved` that have a cluster's targets as they are here, for the ranks of jobs after a restart."""


class _Returned(NamedTuple):
    """A job that was not begun there in time, how many targets it wanted, and how long that is remembered."""

    jobid: int
    wanted: int
    until_s: float


class OfferedTargets:
    """The group of one cluster."""

    def __init__(
        self,
        name: str,
        service: ResourceService,
        store: Store,
        turns: Turns,
        grown: Callable[[str, Idset], None],
        *,
        is_group: bool,
        has_parts: bool,
    ) -> None:
        self.mirror = Mirror(name, has_parts=has_parts)
        self.is_known = False
        self._name = name
        self._service = service
        self._store = store
        self._turns = turns
        self._grown = grown
        self._is_waiting = False
        self._is_group = is_group
        self._stored = ""
        self.closed = ""
        """Why no job is taken or started there at present."""
        self._returned: list[_Returned] = []
        self._has_none = False

    @property
    def targets(self) -> Idset:
        """Those of the group."""
        return self._service.module.targets_of_group(self._name) if self._is_group else EMPTY

    @property
    def online(self) -> Idset:
        """Those that may be used."""
        return self._service.module.usable(self._name) if self.targets else EMPTY

    def change(
        self,
        R: Mapping[str, Any] | None,  # noqa: N803 - RFC 20's name
        states: Mapping[str, str] | None,
        groups: Mapping[str, str] | None,
    ) -> None:
        """The other instance tells something new. Raises InvalidValue for what cannot be."""
        self.mirror.change(R, states, groups)
        self.is_known = True
        if R is not None or groups is not None or states is not None:
            theirs, module = self.mirror.resources, self._service.module
            self._has_none = not theirs
            if theirs:
                self._grown(self._name, module.targets.admit(theirs).resources.ranks)
                self._service.perform(module.mirror(self._name, theirs, self._turns.wall_s))
                self._keep()
        self._show()

    def close(self, why: str) -> None:
        """Why no job is taken or started there from now on; empty: jobs are, also such as were returned."""
        if why != self.closed:
            self.closed = why
            self._returned.clear()
            self._show()

    def returned(self, jobid: int, count: int, pause_s: float) -> None:
        """A job of so many targets was not begun there: none of as many is granted for a while."""
        one = _Returned(jobid, count, self._turns.wall_s + pause_s)
        self._returned.append(one)
        self._show()
        self._turns.after(pause_s, partial(self._forget, one))

    def _forget(self, one: _Returned) -> None:
        """Its time is over, whatever the wall clock says, which may have been set back."""
        if one in self._returned:
            self._returned.remove(one)
            self._show()

    @property
    def note(self) -> str:
        """Why less is granted there at present than could be; empty if all is."""
        returned = self.not_begun
        if self._has_none:
            return "it has no targets for jobs of this instance at present"
        if self.closed or returned is None:
            return self.closed
        jobs = "no job" if returned.wanted == 1 else f"no job of {returned.wanted} nodes or more"
        until = local_text(returned.until_s)
        return f"{format_f58(returned.jobid)} was not begun there in time; {jobs} is sent until {until}"

    @property
    def not_begun(self) -> _Returned | None:
        """The smallest of the jobs that were returned lately."""
        return min(self._returned, key=lambda one: one.wanted, default=None)

    def silent(self) -> None:
        """Nothing is heard: nothing new is granted there."""
        self.is_known = False
        if targets := self.targets:
            self._service.perform(self._service.module.set_offline(targets, self._turns.wall_s))

    def jobs_changed(self) -> None:
        """Jobs here hold more or less of the group."""
        if self.is_known:
            self._look_later()

    def _keep(self) -> None:
        module = self._service.module
        text = msgspec.json.encode(module.resources.restrict(self.targets).to_json()) if self.targets else b"null"
        if text.decode() != self._stored:
            self._stored = text.decode()
            self._store.add("saved", (STORED_KIND, self._name, text))

    def _show(self, *, is_settled: bool = False) -> None:
        """Have online what may be used; what others seem to use is looked at again first."""
        module, targets = self._service.module, self.targets
        if not self.is_known or not targets:
            return
        admission = module.targets.admit(self.mirror.resources)
        usable = admission.ours(self.mirror.usable) & targets
        taken = taken_by_others(admission.ours(self.mirror.in_use) & targets, module.held & targets)
        online, now_s = module.status()["online"] & targets, self._turns.wall_s
        if (taken & online) and not is_settled:
            self._look_later()
            taken -= online
        wanted = self._granted_now(usable - taken)
        if online - wanted:
            self._service.perform(module.set_offline(online - wanted, now_s))
        if wanted - online:
            self._service.perform(module.set_online(wanted - online, now_s))

    def _granted_now(self, targets: Idset) -> Idset:
        """Of these targets those on which something may begin."""
        if self.closed:
            return EMPTY
        if (returned := self.not_begun) is None:
            return targets
        held = self._service.module.held
        return Idset.of([*(targets - held), *(targets & held)][: returned.wanted - 1])

    def _look_later(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._turns.after(OCCUPIED_S, self._look)

    def _look(self) -> None:
        self._is_waiting = False
        self._show(is_settled=True)
