"""Which policies there are, for people who choose one: `fluxsched policy list`, and the shell that completes a name.

Law: it answers at once, so it imports neither the simulator nor an instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fluxsched.errors import FluxschedError
from fluxsched.sched.registry import known_policies, make, says

__all__ = ["Listed", "known_policies", "policies"]


class Listed(NamedTuple):
    """A policy that there is, its options as `key=default`, and what it says of itself, or why it cannot be loaded."""

    name: str
    options: str
    says: str


def policies() -> Iterator[Listed]:
    """Ours and those of installed packages, by name."""
    for name in known_policies():
        try:
            policy = make(name, {})
            options = " ".join(f"{key}={option.default}" for key, option in policy.OPTIONS.items())
            yield Listed(name, options, says(policy))
        except FluxschedError as fault:
            yield Listed(name, "", f"cannot be loaded: {fault}")
