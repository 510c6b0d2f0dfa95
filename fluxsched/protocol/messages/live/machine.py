"""`resource.watch`: the state of every target, whole at first, then what is different."""

from __future__ import annotations

from fluxsched.protocol.messages.common import IdsetText, Payload, RObject
from fluxsched.protocol.messages.resource import DrainInfo, GroupInfo


class MachineChange(Payload, frozen=True, kw_only=True):
    """What is new; in the first answer all of it. A key that is left out stays as it was.

    `states` has targets by their state, `busy` and `busy_gpus` by the number of their cores and GPUs that jobs hold: of
    all targets only those that changed, and in the first answer only those of which a job holds some. `drains` and
    `groups` are whole, as in `resource.status` and `resource.groups`. Targets that a new `R` does not have are gone.
    """

    R: RObject | None = None
    states: dict[str, IdsetText] | None = None
    busy: dict[str, IdsetText] | None = None
    busy_gpus: dict[str, IdsetText] | None = None
    drains: dict[IdsetText, DrainInfo] | None = None
    groups: list[GroupInfo] | None = None
    made_up: IdsetText | None = None
