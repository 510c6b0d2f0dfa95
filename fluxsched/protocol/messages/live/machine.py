"""`resource.watch`: the state of every target, whole at first, then what is different."""

from __future__ import annotations

from fluxsched.protocol.messages.common import IdsetText, Payload, RObject
from fluxsched.protocol.messages.resource import DrainInfo, GroupInfo


class MachineChange(Payload, frozen=True, kw_only=True):
    """Changed state of targets; all of it in the first response. An absent key is unchanged.

    `states` has targets by their state, `busy` and `busy_gpus` by the number of their cores and GPUs that jobs hold: of
    all targets only those that changed, and in the first response only those of which a job holds some. `drains` and
    `groups` are complete, as in `resource.status` and `resource.groups`. Targets that a new `R` does not have are
    removed.
    """

    R: RObject | None = None
    states: dict[str, IdsetText] | None = None
    busy: dict[str, IdsetText] | None = None
    busy_gpus: dict[str, IdsetText] | None = None
    drains: dict[IdsetText, DrainInfo] | None = None
    groups: list[GroupInfo] | None = None
    made_up: IdsetText | None = None
