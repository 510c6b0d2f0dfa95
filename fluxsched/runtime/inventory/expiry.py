"""An R whose time is over (RFC 20, `expiration`) is refused before anything starts or is replaced.

Law: nothing is ever scheduled on expired resources, so an instance that accepted them would look healthy and run no
job.
"""

from __future__ import annotations

from fluxsched.errors import InvalidValue
from fluxsched.runtime.inventory.sources import Sources
from fluxsched.runtime.system.clock import local_moment

ENCLOSED = "job-info"
"""RFC 44's method of resources that come from an enclosing job."""


def unexpired(found: Sources, path: object, now_s: float) -> Sources:
    """`found`, whose R came from the file `path` or from nowhere (None). Raises InvalidValue if its time is over."""
    resources = found.inventory.resources
    expiration_s = resources.expiration_s
    if not 0 < expiration_s <= now_s:
        return found
    when = f"expired at {local_moment(expiration_s)} (expiration {expiration_s:.15g}), so no job could ever start"
    if found.inventory.method == ENCLOSED:
        remedy = "start inside a job that has time left, or name other resources (--R, --fake, --config)"
        raise InvalidValue(f"the resources of the enclosing job {when}: {remedy}")
    name = "R" if path is None else f"{path}: R"
    raise InvalidValue(f"{name} {when}: give its execution.expiration a later time, or 0 for no end")
