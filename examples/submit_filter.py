"""A submit filter: jobs without a time limit get one, and jobs that ask for many nodes need a bank.

    [ingest]
    filters = ["submit_filter.py:minutes=60,nodes=64"]

    fluxsched config check examples/submit_filter.toml
    fluxsched start --config examples/submit_filter.toml --fake 2x4 -- fluxsched run hostname

The whole interface is on the page rfc/submit-filters.md.
"""

from typing import Any, ClassVar

from fluxsched.plugin import Option, Refused, SubmittedJob


class SiteRules:
    """Give jobs a time limit, and ask for a bank above a number of nodes."""

    name = "site-rules"
    OPTIONS: ClassVar = {
        "minutes": Option(60.0, parse=float, help="the time limit of jobs that have none"),
        "nodes": Option(64, parse=int, help="the most nodes without a bank"),
    }

    def __init__(self, minutes: float, nodes: int) -> None:
        self._duration_s = minutes * 60
        self._nodes = nodes

    def filter(self, job: SubmittedJob) -> dict[str, Any] | None:
        """Refuse, edit, or return None to let the job pass as it is."""
        system = job.jobspec["attributes"].setdefault("system", {})
        if nodes_of(job.jobspec["resources"]) > self._nodes and not system.get("bank"):
            raise Refused(f"a job of more than {self._nodes} nodes needs a bank: submit with --bank NAME")
        if system.get("duration"):
            return None
        system["duration"] = self._duration_s
        return job.jobspec


def nodes_of(resources: list[dict[str, Any]]) -> int:
    """Return how many nodes a request names; 0 if it asks for slots anywhere."""
    counts = [each["count"] for each in resources if each["type"] == "node"]
    return sum(count["min"] if isinstance(count, dict) else int(count) for count in counts)
