"""Usage of a job, as in its `finish` event.

Law: sums only, a few numbers a job, since a hundred thousand ended jobs are kept; rows of tasks stay in the eventlog.
"""

# Not compiled: msgspec decodes into this class by annotations, of which mypyc keeps few

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fluxsched.errors import InvalidValue


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Wall and CPU time of a job's tasks, and the peak of the largest of their processes."""

    wall_s: float
    user_s: float
    system_s: float
    max_rss_bytes: int
    max_rss_is_bound: bool = False
    """The peak is no more than this, but how much it was is not known."""

    def to_json(self) -> dict[str, Any]:
        """As the eventlog has it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        if not self.max_rss_is_bound:
            del found["max_rss_is_bound"]
        return found


def read_usage(context: Mapping[str, Any]) -> Usage | None:
    """Read the usage in the context of a `finish` event; None where it was not measured (pretended execution, version
    0.1).
    """
    found = context.get("usage")
    if found is None:
        return None
    try:
        return msgspec.convert(found, Usage)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"usage: {error}") from None
