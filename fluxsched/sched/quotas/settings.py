"""What a queue is set to, as values that its reader has checked.

Law: a kind that a maximum does not name is free, one that it names with 0 is forbidden; `max_applications` 0 is no
limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluxsched.core.amounts import Amounts

ANYONE: Final = "*"
"""A user or a group of a limit that holds for each user."""

FIFO: Final = "fifo"
FAIR: Final = "fair"
STATEAWARE: Final = "stateaware"
SORTS: Final = (FIFO, FAIR, STATEAWARE)
"""Orders of the applications of a leaf."""

PREEMPT_DEFAULT: Final = "default"
PREEMPT_DISABLED: Final = "disabled"
PREEMPT_FENCE: Final = "fence"
PREEMPTION_POLICIES: Final = (PREEMPT_DEFAULT, PREEMPT_DISABLED, PREEMPT_FENCE)
"""`disabled`: none of its allocations may be preempted; `fence`: what is inside preempts nothing outside of it."""

PREEMPTION_DELAY_S: Final = 30.0
"""How long an ask waits before others are preempted for it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What each of these users may have at once in a queue, or each of these groups all together.

    `ANYONE` in either is each user. An empty `maximum` limits no resources.
    """

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    maximum: Amounts = ()
    max_applications: int = 0


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One queue and those below it. `by_priority`: priorities come before shares; else they decide between equal ones.

    `priority_offset` is added to the priorities of what waits below, as parents see them; with `priority_fence` they
    see the offset alone.
    """

    name: str
    is_parent: bool = False
    guaranteed: Amounts = ()
    maximum: Amounts = ()
    max_applications: int = 0
    sort: str = FIFO
    by_priority: bool = True
    priority_offset: int = 0
    priority_fence: bool = False
    preemption: str = PREEMPT_DEFAULT
    preemption_delay_s: float = PREEMPTION_DELAY_S
    limits: tuple[Limit, ...] = ()
    children: tuple[QueueSettings, ...] = ()
