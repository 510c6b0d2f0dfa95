"""One table: each state of a target, its word, its colours and its sign. Page, screen and map use the same.

Law: STATES is in order of gravity, gravest first, and has the words of `instance.metrics` and `resource.watch`. Colours
differ in lightness, too, so that they can be told apart without red or green; signs are one column wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fluxsched.protocol.messages.history import USABLE


class TargetState(NamedTuple):
    """How a state is shown: by its word, on a light or a dark ground, on a terminal of 256 colours, without colour."""

    word: str
    meaning: str
    light: str
    dark: str
    terminal: int
    sign: str


STATES: tuple[TargetState, ...] = (
    TargetState("lost", "its agent is gone for good, as far as is known", "#b0305c", "#e8769b", 168, "L"),
    TargetState("excluded", "withdrawn from all schedulers", "#b9bfc7", "#555d68", 240, "x"),
    TargetState("offline", "its agent is not connected", "#3f4650", "#8b95a1", 245, "o"),
    TargetState("draining", "drained, while a job still holds it", "#f0b95c", "#c98a1f", 214, "d"),
    TargetState("drained", "out of service", "#c4560a", "#f08a3c", 166, "D"),
    TargetState("torpid", "its agent is silent", "#8a6fc0", "#b49be6", 140, "t"),
    TargetState("leaving", "on its way to another group", "#c08fd0", "#8f5ca3", 133, "l"),
    TargetState("allocated", "a job holds it", "#1f6fb5", "#58a6e8", 32, "A"),
    TargetState("free", "no job holds it", "#d9e8d3", "#2c4a3a", 151, "."),
)

WORDS: tuple[str, ...] = tuple([state.word for state in STATES])
USED = USABLE
"""The states of a target that works: the share of its cores in use says more than they do."""
PARTLY_SIGN = "a"
"""The sign of a target of whose cores some are in use, some free."""
_BY_WORD = {state.word: state for state in STATES}


def state_named(word: str) -> TargetState:
    """How a state is shown; one that an instance newer than this has is shown as itself, in grey."""
    return _BY_WORD.get(word) or TargetState(word, "", "#7f8791", "#7f8791", 244, "?")


def states_table() -> list[dict[str, Any]]:
    """The table for a page: word, meaning, colours and sign of each state, and whether jobs may be put there."""
    return [
        {"word": one.word, "meaning": one.meaning, "light": one.light, "dark": one.dark, "sign": one.sign,
         "usable": one.word in USABLE}
        for one in STATES
    ]
