"""Which policy orders which queue, as texts, before any scheduler starts.

Law: only what the words alone say is judged, and no code of a plugin is run: that is for its own process to do. A queue
has the policy that its scheduler's own words give it, else that of its configuration, else its scheduler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.runtime.config_values import QueueSettings
from fluxsched.sched.registry import (
    OWN,
    is_file,
    join_queues,
    known_policies,
    make,
    parse_spec,
    split_queues,
    unknown_policy,
)


def check_policy(spec: str) -> None:
    """Raises InvalidValue for words that name no policy, and for options that a policy of ours does not have."""
    name, options = parse_spec(spec)
    if name in OWN:
        make(name, options)
    elif not is_file(name) and name not in known_policies():
        raise unknown_policy(name)


def check_policies(specs: str) -> tuple[str, dict[str, str]]:
    """`split_queues`, with each policy checked. Raises InvalidValue naming the queue at fault."""
    general, own = split_queues(specs)
    check_policy(general)
    for queue, spec in own.items():
        try:
            check_policy(spec)
        except InvalidValue as fault:
            raise type(fault)(f"queue {queue!r}: {fault}") from None
    return general, own


def check_files(specs: str) -> None:
    """Raises InvalidValue for `SPEC;QUEUE=SPEC;...` with a policy in a file that is not there."""
    general, own = split_queues(specs)
    for spec in (general, *own.values()):
        name, _ = parse_spec(spec)
        if is_file(name) and not Path(name).is_file():
            raise InvalidValue(f"there is no file {name}")


def composed(specs: str, groups: Sequence[str], queues: Mapping[str, QueueSettings]) -> str:
    """`SPEC;QUEUE=SPEC;...` for a scheduler of these groups, complete with what its queues' configuration says.

    Raises InvalidValue for a policy that is none, and for a queue that is not configured or that another group serves.
    """
    general, named = check_policies(specs)
    for name in named:
        if name not in queues:
            known = f"there are {', '.join(queues)}" if queues else "there are none"
            raise InvalidValue(f"queue {name!r} has a policy in {specs!r}, but is not configured: {known}")
        if (group := queues[name].group) not in groups:
            raise InvalidValue(
                f"queue {name!r} has a policy in {specs!r}, but group {group!r} serves it, and this scheduler "
                f"{', '.join(groups)}"
            )
    served = {name: queue.policy for name, queue in queues.items() if queue.policy and queue.group in groups}
    return join_queues(general, named | {name: spec for name, spec in served.items() if name not in named})


def policy_of(queue: str | None, specs: str) -> str:
    """The policy of a queue under a scheduler with the policies `SPEC;QUEUE=SPEC;...`."""
    general, own = split_queues(specs)
    return general if queue is None else own.get(queue, general)
