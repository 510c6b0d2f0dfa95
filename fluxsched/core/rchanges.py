"""The R of a job that grows and shrinks while it runs (rfc/allocation.md).

Law: times are those of the R that the job had; what was given and taken back again leaves nothing behind, nor do its
switches. `nslots` is left out where it is not known which targets had how many.
"""

from __future__ import annotations

import dataclasses

from fluxsched.core.group_change import with_own_topology
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rscheduling import with_parts


def grown(before: ResourceSet, added: ResourceSet) -> ResourceSet:
    """With what was added, targets of which it has none. Raises InvalidValue if only one of the two has hosts."""
    nslots = None if before.nslots is None or added.nslots is None else before.nslots + added.nslots
    start_s, end_s = before.starttime_s, before.expiration_s
    return dataclasses.replace(before | added, nslots=nslots, starttime_s=start_s, expiration_s=end_s)


def shrunk(before: ResourceSet, ranks: Idset) -> ResourceSet:
    """Without these of its targets, where it has the same slots on each node; what it has once stays."""
    left = with_own_topology(before.without(ranks).with_shared(before.shared))
    if before.parts:
        return dataclasses.replace(left, nslots=None, scheduling=with_parts(left.scheduling, left.parts))
    nslots = None if before.nslots is None else before.nslots // len(before.ranks) * len(left.ranks)
    return dataclasses.replace(left, nslots=nslots or None)
