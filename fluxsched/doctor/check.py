"""One thing that was looked at, and how it is.

Law: looking changes nothing and never fails: what cannot be found out is a finding, too. Whatever is not as it should
be comes with what to do about it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

CheckState = Literal["ok", "none", "warn", "fail"]
"""As it should be; not there, and not needed unless wanted; works, but; does not work and should."""


class Check(NamedTuple):
    """A finding."""

    section: str
    name: str
    state: CheckState
    found: str
    remedy: str = ""


def is_well(checks: list[Check]) -> bool:
    """Whether everything works that should."""
    return all(check.state != "fail" for check in checks)
