"""The jobspec that goes to another instance.

Law: it asks for what was granted here, and for nothing that only this instance knows: counts that were ranges are
settled, a constraint names hosts as they are called there, and what was waited for, where it stands in line, and how
often it may be preempted is this instance's business.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Final

from fluxsched.core.documents import with_path
from fluxsched.core.jobid import fill, format_f58, id_tag
from fluxsched.core.jobspec import OWN_CONSTRAINT, Jobspec
from fluxsched.core.resources import LOCAL_PREFIX, ResourceSet
from fluxsched.errors import InvalidValue, Refused

HOST_SEPARATOR: Final = ":"
"""Separator between the name of a cluster and that of a host of it."""

_OURS: Final = ("queue", "bank", "dependencies", "array", "preemptible-after")
"""Keys of `attributes.system` that are settled in this instance, or have another meaning there."""
_OURS_OF_OWN: Final = ("requeue", "elastic")
"""Keys of `attributes.system.fluxsched` that are not sent to another instance."""


def mirrored_host(cluster: str, host: str) -> str:
    """Return the name of a cluster's host in this instance: hosts of two clusters may have one name."""
    return f"{cluster}{HOST_SEPARATOR}{host}"


def is_mirrored(host: str) -> bool:
    """Return whether a host is one of a cluster."""
    return HOST_SEPARATOR in host


def size_is_settled(jobid: int) -> Refused:
    """Why a job that runs in another instance does not change its size."""
    text = f"job {format_f58(jobid)} runs in another instance: its size was settled when it was sent"
    return Refused(text, errno.EOPNOTSUPP)


def jobspec_for(
    jobspec: Jobspec, jobid: int, cluster: str, queue: str | None, duration_s: float, granted: ResourceSet
) -> dict[str, Any]:
    """Return the jobspec of a job that was `granted` targets of a cluster; `queue` is one there.

    Raises InvalidValue for a constraint that names ranks, which are others there.
    """
    raw = with_path(jobspec.raw, "attributes.system.duration", duration_s)
    system = {key: value for key, value in raw["attributes"]["system"].items() if key not in _OURS}
    if queue is not None:
        system["queue"] = queue
    own = {key: value for key, value in (system.pop("fluxsched", None) or {}).items() if key not in _OURS_OF_OWN}
    if own:
        system["fluxsched"] = own
    job = {key: value for key, value in (system.pop("job", None) or {}).items() if key == "name"}
    if job:
        system["job"] = job
    constraint = _constraint(system.pop("constraints", None) or {}, cluster)
    if constraint:
        system["constraints"] = constraint
    sent: dict[str, Any] = {**raw, "attributes": {**raw["attributes"], "system": system}}
    sent["resources"] = [_settled(vertex, granted, cluster) for vertex in raw["resources"]]
    return _with_paths(sent, jobspec, jobid)


def _settled(vertex: Mapping[str, Any], granted: ResourceSet, cluster: str) -> dict[str, Any]:
    """Return a top-level vertex with its count as granted, and with the constraint of its part alone."""
    found = dict(vertex)
    if own := _constraint(found.pop(OWN_CONSTRAINT, None) or {}, cluster):
        found[OWN_CONSTRAINT] = own
    count = vertex.get("count")
    if isinstance(count, int) or vertex["type"] not in ("node", "slot"):
        return found
    if vertex["type"] == "node":
        label = next((str(below.get("label")) for below in vertex["with"] if below["type"] == "slot"), "")
        return found | {"count": len(granted.parts.get(label, granted.ranks))}
    cores = next((leaf["count"] for leaf in vertex["with"] if leaf["type"] == "core"), 1)
    return found | {"count": max(1, granted.count("core") // max(1, int(cores)))}


def _constraint(constraint: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the constraint with the cluster's own host names, and without membership of queues of this instance; empty
    if nothing is left.
    """
    found: dict[str, Any] = {}
    for operator, values in constraint.items():
        if operator == "ranks":
            raise InvalidValue(f"the constraint names ranks, which differ in cluster {cluster}: name hosts")
        if operator == "hostlist":
            found[operator] = [value.replace(f"{cluster}{HOST_SEPARATOR}", "") for value in values]
        elif operator == "properties":
            if kept := [value for value in values if not value.startswith(LOCAL_PREFIX)]:
                found[operator] = kept
        elif kept := [inner for value in values if (inner := _constraint(value, cluster))]:
            found[operator] = kept
    return found


def _with_paths(sent: dict[str, Any], jobspec: Jobspec, jobid: int) -> dict[str, Any]:
    """Return the jobspec with the job's id here in the names of its files: its id there is another."""
    for stream, template in (("stdout", jobspec.output), ("stderr", jobspec.error)):
        if template is not None and "{{" in template:
            filled = fill(template, lambda tag: id_tag(tag, jobid))
            sent = with_path(sent, f"attributes.system.shell.options.output.{stream}.path", filled)
    return sent
