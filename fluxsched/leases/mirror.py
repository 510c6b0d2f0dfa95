"""Targets reported by another instance, and the part of them that is offered here.

Law: the group of a cluster has the targets that jobs of ours may get there, under names that say whose they are. What
others use there is not offered here. Where a job of ours runs is the other instance's choice, so what counts is how
many targets are in use, not which: as many as jobs of others have are taken from those that no job here holds. Switches
are called like targets, so none here is above hosts of two clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ONE_PART, ResourceSet
from fluxsched.core.topology import EMPTY_TOPOLOGY, Switch, Topology
from fluxsched.leases.jobspec import is_mirrored, mirrored_host


class Mirror:
    """The other instance's targets, in its own ranks; `has_parts`: it knows jobs of several parts."""

    def __init__(self, cluster: str, *, has_parts: bool) -> None:
        self._cluster = cluster
        self._has_parts = has_parts
        self._whole = EMPTY_R
        self._states: dict[str, Idset] = {}
        self._groups: dict[str, Idset] = {}
        self._offered = EMPTY_R
        self._offered_of: tuple[ResourceSet, Idset] = EMPTY_R, EMPTY
        """Offered targets, with the inputs from which they were computed: states change often, the targets rarely."""
        self.wanted_groups: tuple[str, ...] | None = None
        """The groups there that our jobs can have; None: all."""

    def change(
        self, R: Mapping[str, Any] | None, states: Mapping[str, str] | None, groups: Mapping[str, str] | None  # noqa: N803
    ) -> None:
        """Apply changes of R, of targets by their state, and of groups. Raises InvalidValue for invalid ones."""
        if R is not None:
            self._whole = ResourceSet.parse(R)
            self._states = {name: ranks & self._whole.ranks for name, ranks in self._states.items()}
        if states is not None:
            changed = {name: Idset.parse(text) for name, text in states.items()}
            for ranks in changed.values():
                self._states = {name: known - ranks for name, known in self._states.items()}
            for name, ranks in changed.items():
                self._states[name] = self._states.get(name, EMPTY) | ranks
        if groups is not None:
            self._groups = {name: Idset.parse(text) for name, text in groups.items()}

    @property
    def resources(self) -> ResourceSet:
        """Return the offered targets, with their names in this instance; the same value while it is equal."""
        whole, away = self._whole, self._state("lost") | self._state("excluded")
        ranks = whole.ranks - away
        if self.wanted_groups is not None:
            wanted = EMPTY
            for name in self.wanted_groups:
                wanted |= self._groups.get(name, EMPTY)
            ranks &= wanted
        known, of = self._offered_of
        if known is not whole or of != ranks:
            self._offered_of, self._offered = (whole, ranks), self._renamed(whole, ranks)
        return self._offered

    def _renamed(self, whole: ResourceSet, ranks: Idset) -> ResourceSet:
        foreign = Idset.of([rank for rank in ranks if is_mirrored(whole.host(rank))])
        found, cluster = whole.restrict(ranks - foreign).job_view(), self._cluster
        hosts = Hostlist.of([mirrored_host(cluster, host) for host in found.nodelist])
        topology = mirrored_topology(cluster, found.topology)
        properties = found.properties if self._has_parts else {**found.properties, ONE_PART: found.ranks}
        return ResourceSet(found.entries, hosts, properties, topology=topology)

    @property
    def usable(self) -> Idset:
        """Return the targets on which jobs may run."""
        return self._state("free") | self._state("allocated")

    @property
    def in_use(self) -> Idset:
        """Return the targets on which a job runs, ours or another's."""
        return self._state("allocated")

    def _state(self, name: str) -> Idset:
        return self._states.get(name, EMPTY)


def mirrored_topology(cluster: str, topology: Topology) -> Topology:
    """Return a cluster's switches with their names in this instance."""
    if not topology:
        return EMPTY_TOPOLOGY
    return Topology(
        [
            Switch(
                mirrored_host(cluster, switch.name),
                Hostlist(tuple([mirrored_host(cluster, host) for host in switch.hosts.hosts])),
                tuple([mirrored_host(cluster, below) for below in switch.switches]),
            )
            for switch in topology.switches.values()
        ]
    )


def taken_by_others(in_use: Idset, held: Idset) -> Idset:
    """Return the targets that count as taken by jobs of others, of those `in_use` there, where jobs of this instance
    hold `held`.
    """
    more = max(0, len(in_use) - len(held))
    return Idset.of(list(in_use - held)[:more]) if more else EMPTY
