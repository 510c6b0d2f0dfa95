"""What the bar at the top of the page shows, from `instance.metrics`. Other bodies are passed on as `views` has them.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Of a whole all figures, of a change those that it has."""
    found: dict[str, Any] = {}
    if "targets" in metrics:
        found["targets"] = metrics["targets"]
    if "cores" in metrics:
        found["cores"] = sum(metrics["cores"].values())
        found["cores_in_use"] = metrics["cores"].get("allocated", 0)
    if "queues" in metrics:
        found["running"] = sum([queue["running"] for queue in metrics["queues"]])
        found["waiting"] = sum([queue["pending"] for queue in metrics["queues"]])
    return found
