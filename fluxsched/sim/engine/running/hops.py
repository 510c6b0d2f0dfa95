"""How far the targets of a job are apart."""

from __future__ import annotations

from collections.abc import Sequence

from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology


def largest_hops(topology: Topology, resources: ResourceSet) -> int | None:
    """The most between any two targets of the job, of each part where it has several.

    None where there is but one target, or where some are not connected.
    """
    parts = resources.parts
    ranks = list(parts.values()) if parts else [resources.ranks]
    found = [_of_hosts(topology, resources.hosts(each).hosts) for each in ranks if len(each) > 1]
    known = [hops for hops in found if hops is not None]
    return max(known, default=None)


def _of_hosts(topology: Topology, hosts: Sequence[str]) -> int | None:
    common = topology.lowest_common(hosts)
    if common is None:
        return None
    leaves = {topology.leaf_of[host] for host in hosts}
    return 2 * (max([topology.chain(leaf).index(common) for leaf in leaves]) + 1)
