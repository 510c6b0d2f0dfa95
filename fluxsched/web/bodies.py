"""From the bodies of `views` to those that the script reads: names for people, ids that a script can hold.

A job's number is above 2^53, where a script's numbers are not exact: it is known by its F58 text, `jobid`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.views.subscription import ViewMessage


def body_of(view: str, message: ViewMessage) -> Mapping[str, Any]:
    """What the script gets."""
    return message.body
