"""How a lease stands, and the table that says what each event means to it.

Law: the table is the only place that decides whether something is sent to the other instance, and whether the job here
ends, continues or is returned; a test walks it over all states, wishes and events.

The law behind it: a lease is given up only where it is certain that nothing of it runs or will run in the other
instance: it was never sent, the other instance says so, or an operator vouches for it (`FORGOTTEN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class LeaseState(Enum):
    """What is stored of a lease. The values are those of the column `state`."""

    WANTED = "wanted"
    """Nothing of it was sent."""
    SENT = "sent"
    """It may have reached the other instance, and has not been seen to run."""
    RUNNING = "running"
    """It was seen to run."""
    ENDED = "ended"
    """It is over: the row goes with the event that ends the job."""


class Wish(Enum):
    """What is to become of a lease that is not over."""

    RUN = "run"
    RETURN = "return"
    """It was not begun in time: another place is looked for, unless it begins first."""
    END = "end"
    """Its job is to end."""


class LeaseEvent(Enum):
    """What is learned of a lease."""

    ABSENT = "absent"
    """The other instance has no job of this name."""
    WAITING = "waiting"
    """It has one, which was not begun."""
    BEGUN = "begun"
    """It has one, which runs."""
    FINISHED = "finished"
    """It has one, which was begun and has ended."""
    REFUSED = "refused"
    """It does not take the job, or ended it before it was begun."""
    CLOSED = "closed"
    """It has no job of this name, and accepts none at present."""
    LATE = "late"
    """It was not begun within `return-after`."""
    KILLED = "killed"
    """The job is to end."""
    FORGOTTEN = "forgotten"
    """An operator says that nothing of the other instance is left."""


class LeaseAction(Enum):
    """What follows."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    BEGIN = "begin"
    """The job here runs."""
    FINISH = "finish"
    """It ends as the one there did."""
    FAIL = "fail"
    """It ends with an exception: it was refused."""
    LOSE = "lose"
    """It ends with an exception: it was begun, and what became of it will not be known."""
    RETURN = "return"
    """It is submitted anew here, at no cost of attempts."""
    DROP = "drop"
    """It ends without having run, as was wanted."""
    WITHDRAW = "withdraw"
    """The one there is cancelled, unless it was begun."""
    CANCEL = "cancel"
    """The one there is ended."""


class LeaseStep(NamedTuple):
    """The state and the wish that follow, and what is done."""

    state: LeaseState
    wish: Wish
    action: LeaseAction


WANTED, SENT, RUNNING, ENDED = LeaseState
_RUN, _RETURN, _END = Wish
_ACT = LeaseAction
_E = LeaseEvent

_OVER = {
    _E.FINISHED: LeaseStep(ENDED, _RUN, _ACT.FINISH),
    _E.REFUSED: LeaseStep(ENDED, _RUN, _ACT.FAIL),
}
"""What the other instance says of a job that is over holds, whatever was wished."""
_BEGUN = {
    **_OVER,
    _E.ABSENT: LeaseStep(ENDED, _RUN, _ACT.LOSE),
    _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.LOSE),
    _E.LATE: LeaseStep(RUNNING, _RUN, _ACT.NOTHING),
    _E.KILLED: LeaseStep(RUNNING, _END, _ACT.CANCEL),
    _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.LOSE),
}
"""Once a lease was seen to run it is never submitted or returned."""
_NOTHING_MORE = dict.fromkeys(_E, LeaseStep(ENDED, _RUN, _ACT.NOTHING))

STEPS: Final[Mapping[tuple[LeaseState, Wish], Mapping[LeaseEvent, LeaseStep]]] = {
    (WANTED, _RUN): {
        **_OVER,
        _E.ABSENT: LeaseStep(SENT, _RUN, _ACT.SUBMIT),
        _E.WAITING: LeaseStep(SENT, _RUN, _ACT.NOTHING),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.BEGIN),
        _E.LATE: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.KILLED: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.RETURN),
    },
    (SENT, _RUN): {
        **_OVER,
        _E.ABSENT: LeaseStep(SENT, _RUN, _ACT.SUBMIT),
        _E.WAITING: LeaseStep(SENT, _RUN, _ACT.NOTHING),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.BEGIN),
        _E.LATE: LeaseStep(SENT, _RETURN, _ACT.WITHDRAW),
        _E.KILLED: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.RETURN),
    },
    (SENT, _RETURN): {
        _E.FINISHED: LeaseStep(ENDED, _RUN, _ACT.FINISH),
        _E.REFUSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.ABSENT: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.WAITING: LeaseStep(SENT, _RETURN, _ACT.WITHDRAW),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.BEGIN),
        _E.LATE: LeaseStep(SENT, _RETURN, _ACT.NOTHING),
        _E.KILLED: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.RETURN),
    },
    (SENT, _END): {
        _E.FINISHED: LeaseStep(ENDED, _RUN, _ACT.FINISH),
        _E.REFUSED: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.ABSENT: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.WAITING: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.BEGUN: LeaseStep(RUNNING, _END, _ACT.CANCEL),
        _E.LATE: LeaseStep(SENT, _END, _ACT.NOTHING),
        _E.KILLED: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.DROP),
    },
    (RUNNING, _RUN): {
        **_BEGUN,
        _E.WAITING: LeaseStep(RUNNING, _RUN, _ACT.NOTHING),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.NOTHING),
    },
    (RUNNING, _END): {
        **_BEGUN,
        _E.LATE: LeaseStep(RUNNING, _END, _ACT.NOTHING),
        _E.WAITING: LeaseStep(RUNNING, _END, _ACT.CANCEL),
        _E.BEGUN: LeaseStep(RUNNING, _END, _ACT.CANCEL),
    },
    (ENDED, _RUN): _NOTHING_MORE,
}
"""What each event means, by state and wish. What is not wanted any more while nothing was sent is over at once, so
other pairs do not occur."""
