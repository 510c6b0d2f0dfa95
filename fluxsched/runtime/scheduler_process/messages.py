"""The messages of a scheduler's conversation by topic, for adapters that decode them.

Law: what is expensive to read is left as it came: a jobspec as its bytes, which are looked up among those read before,
and of the R in a free only what names resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.lite import FREE
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.messages.accounts import AccountsRequest
from fluxsched.protocol.messages.live.plan import PlanRequest
from fluxsched.protocol.messages.live.reasons import SchedReasonsRequest
from fluxsched.runtime.scheduler_process import effects

REQUESTS: Mapping[str, Any] = {
    "sched.alloc": codec.with_raw(msg.AllocRequest, "jobspec"),
    "sched.free": FREE,
    "sched.cancel": msg.SchedCancelRequest,
    "sched.prioritize": msg.PrioritizeRequest,
    "sched.expiration": msg.ExpirationRequest,
    "sched.permit": msg.PermitRequest,
    "sched.why": msg.SchedWhyRequest,
    "sched.accounts": AccountsRequest,
    "sched.plan": PlanRequest,
    "sched.reasons": SchedReasonsRequest,
    "sched.resource-status": dict[str, Any],
    "feasibility.check": codec.with_raw(msg.FeasibilityRequest, "jobspec"),
}
"""What `SchedulerSession.receive` takes."""

ANSWERS: Mapping[str, Any] = {
    effects.HELLO: codec.with_raw(msg.HelloResponse, "jobspec"),
    effects.READY: msg.ReadyResponse,
}
"""What `SchedulerSession.answered` takes decoded; acquire streams decode their own."""
