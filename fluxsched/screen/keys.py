"""The keys: what each does, who may use it, where it is shown. One table: the last line and the help use it, too."""

from __future__ import annotations

from typing import NamedTuple

from fluxsched.core.role import Role

PANES = ("machine", "jobs", "queues", "groups", "log")
"""In the order of Tab, and of the keys 1 to 5."""


class KeyUse(NamedTuple):
    """One action: its keys as Textual names them, the one that is shown, and what it does."""

    keys: str
    action: str
    shown: str
    label: str
    """In the last line; empty: only in the help."""
    help: str
    panes: tuple[str, ...] = PANES
    least: Role = Role.GUEST


KEYS = (
    KeyUse("f1,question_mark", "help", "F1", "Help", "This help; any key closes it"),
    KeyUse("f3,slash", "search", "F3", "Search",
           "Find in the pane: a text, in the machine hosts or ranks; / as well; n: the next one"),
    KeyUse("n", "search_next", "n", "", ""),
    KeyUse("f4,backslash", "filter", "F4", "Filter",
           "Show some jobs, by options of `fluxsched jobs`: -u kim -q batch -f failed; \\ as well", ("jobs",)),
    KeyUse("f5,v", "arrange", "F5", "Arrange",
           "Arrange the machine by group, property, host name or switch; v as well"),
    KeyUse("f6,greater_than_sign", "sort", "F6", "Sort", "Sort by a column; > as well; I: the other way round",
           ("jobs", "queues", "groups")),
    KeyUse("I", "invert", "I", "", ""),
    KeyUse("f9,k", "cancel", "F9", "Cancel", "Cancel jobs; k as well", ("jobs",)),
    KeyUse("h", "hold", "h", "Hold", "Hold waiting jobs, or release those that are held", ("jobs",)),
    KeyUse("r", "urgency", "r", "Urg", "Set the urgency: 0 to 31, hold, default, expedite; F7, F8: one less, more",
           ("jobs",)),
    KeyUse("f7", "urgency_less", "F7", "", "", ("jobs",)),
    KeyUse("f8", "urgency_more", "F8", "", "", ("jobs",)),
    KeyUse("d", "drain", "d", "Drain", "Drain targets: running jobs go on, no new ones start there",
           ("machine", "jobs", "groups"), Role.ADMIN),
    KeyUse("U", "undrain", "U", "Undrain", "Return drained targets to service",
           ("machine", "jobs", "groups"), Role.ADMIN),
    KeyUse("space", "tag", "Space", "Tag", "Tag a job or cell: what follows means all tagged ones; Esc takes tags away",
           ("jobs", "machine")),
    KeyUse("enter", "details", "Enter", "Details",
           "A job's record, why it waits, its events and output; a target's, queue's or group's details",
           ("jobs", "machine", "queues", "groups")),
    KeyUse("u", "user", "u", "User", "Show the jobs of one user", ("jobs",)),
    KeyUse("a", "every_state", "a", "All", "Show jobs that have ended as well, or not", ("jobs",)),
    KeyUse("t", "trace", "t", "Trace", "Show messages as they pass, of topics that begin with a text; again: no more",
           ("log", "groups"), Role.OWNER),
    KeyUse("z", "zoom", "z", "Zoom", "Give the whole screen to the pane, or not"),
    KeyUse("tab", "next_pane", "Tab", "Pane",
           "The next pane; Shift-Tab: the one before; 1 to 5: machine, jobs, queues, groups, log"),
    KeyUse("shift+tab", "previous_pane", "S-Tab", "", ""),
    KeyUse("escape", "escape", "Esc", "", "Close what is open; else take tags away, then the filter"),
    KeyUse("f10,q", "leave", "F10", "Quit", "Quit; q as well"),
)  # fmt: skip


def refusal(use: KeyUse, role: Role | None) -> str | None:
    """Why a user of this role may not use a key, or None: also if it is not known, then the instance says it."""
    if role is None or role >= use.least:
        return None
    return f"{use.label.lower()} needs the role {use.least}; you are a {role} of this instance"
