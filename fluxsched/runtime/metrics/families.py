"""What is exported, by name, and how it is read from an instance's answers (rfc/operations.md lists the same).

Law: a name, once released, keeps its meaning. Labels come from the configuration (groups, queues, modules) or are
states and results, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.protocol.messages.metrics import HistogramValue, MetricsResponse
from fluxsched.runtime.metrics.text import COUNTER, GAUGE, HISTOGRAM, Family, Sample, SampleLabels, lines


class SchedulerAnswer(NamedTuple):
    """A scheduler module, and what its `stats-get` answered; None if it did not."""

    name: str
    stats: Mapping[str, Any] | None


FAMILIES: Final = {
    family.name: family
    for family in (
        Family("fluxsched_up", GAUGE, "Whether the instance answered."),
        Family("fluxsched_sample_seconds", GAUGE, "How long it took to ask the instance."),
        Family("fluxsched_info", GAUGE, "The instance's version.", ("version",)),
        Family("fluxsched_start_time_seconds", GAUGE, "When the instance was started, since the UNIX epoch."),
        Family("fluxsched_resident_memory_bytes", GAUGE, "Resident memory of the instance's process."),
        Family("fluxsched_faults_total", COUNTER, "Unexpected exceptions; each is logged with a traceback."),
        Family("fluxsched_targets", GAUGE, "Targets, each in one state.", ("state",)),
        Family("fluxsched_cores", GAUGE, "Cores, each in one state.", ("state",)),
        Family("fluxsched_group_targets", GAUGE, "Targets of a group.", ("group",)),
        Family("fluxsched_group_usable_targets", GAUGE, "Those of them that jobs may be put on.", ("group",)),
        Family("fluxsched_group_leaving_targets", GAUGE, "Those of them that leave the group.", ("group",)),
        Family("fluxsched_group_acquired", GAUGE, "Whether a scheduler has acquired the group.", ("group",)),
        Family("fluxsched_jobs", GAUGE, "Active jobs: pending, or running (with resources).", ("queue", "state")),
        Family("fluxsched_jobs_submitted_total", COUNTER, "Jobs submitted, those submitted again among them."),
        Family("fluxsched_jobs_started_total", COUNTER, "Jobs started."),
        Family("fluxsched_jobs_ended_total", COUNTER, "Jobs ended.", ("result",)),
        Family("fluxsched_job_wait_seconds", HISTOGRAM, "From a job's submit to its resources."),
        Family("fluxsched_commit_seconds", HISTOGRAM, "Time of a transaction of the store, with its sync."),
        Family("fluxsched_unstored_rows", GAUGE, "Rows that wait for the disk."),
        Family("fluxsched_store_fault", GAUGE, "Whether the state cannot be written; the log says why."),
        Family("fluxsched_peers", GAUGE, "Connected peers."),
        Family("fluxsched_peers_lost_total", COUNTER, "Peers that were lost or dropped, not closed in good order."),
        Family("fluxsched_streams", GAUGE, "Open streams of all peers."),
        Family("fluxsched_open_requests", GAUGE, "Requests that wait for their answers, streams among them."),
        Family("fluxsched_unsent_messages", GAUGE, "Messages that have not been handed to sockets."),
        Family("fluxsched_unsent_bytes", GAUGE, "Bytes that peers have not taken."),
        Family("fluxsched_messages_received_total", COUNTER, "Messages received."),
        Family("fluxsched_messages_sent_total", COUNTER, "Messages sent."),
        Family("fluxsched_messages_dropped_total", COUNTER, "Messages dropped, since their peers were gone."),
        Family("fluxsched_scheduler_up", GAUGE, "Whether the scheduler module answered.", ("module",)),
        Family("fluxsched_scheduler_waiting_jobs", GAUGE, "Requests that the scheduler has.", ("module", "group")),
        Family("fluxsched_scheduler_planned_jobs", GAUGE, "Reservations that stand.", ("module", "group")),
        Family(
            "fluxsched_scheduler_unsatisfiable_jobs", GAUGE, "Jobs that the group cannot hold.", ("module", "group")
        ),
        Family("fluxsched_scheduler_pass_seconds", HISTOGRAM, "Time of a scheduling pass.", ("module",)),
        Family(
            "fluxsched_scheduler_considered_seconds",
            HISTOGRAM,
            "From a job's submit to the end of the first scheduling pass that considered it.",
            ("module",),
        ),
    )
}
"""Every name that is exported, in the order of the text."""

GROUP_FIGURES: Final = {
    "fluxsched_scheduler_waiting_jobs": "waiting",
    "fluxsched_scheduler_planned_jobs": "planned",
    "fluxsched_scheduler_unsatisfiable_jobs": "unsatisfiable",
}
"""What schedulers answer for each of their groups."""

HISTOGRAMS: Final = {
    "fluxsched_scheduler_pass_seconds": "passes",
    "fluxsched_scheduler_considered_seconds": "considered",
}
"""What they answer of their own."""


def text(metrics: MetricsResponse | None, schedulers: tuple[SchedulerAnswer, ...] = (), took_s: float = 0.0) -> str:
    """All families as text; `metrics` is None while the instance does not answer."""
    samples: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    samples["fluxsched_up"].append(({}, int(metrics is not None)))
    samples["fluxsched_sample_seconds"].append(({}, took_s))
    if metrics is not None:
        for name, labels, value in [*_of_instance(metrics), *_of_peers(metrics)]:
            samples[name].append((labels, value))
    for one in schedulers:
        for name, labels, value in _of_scheduler(one):
            samples[name].append((labels, value))
    return "\n".join([line for name, family in FAMILIES.items() for line in lines(family, samples[name])]) + "\n"


_Named = tuple[str, SampleLabels, float | HistogramValue]


def _of_instance(found: MetricsResponse) -> list[_Named]:
    named: list[_Named] = [
        ("fluxsched_info", {"version": found.version}, 1),
        ("fluxsched_start_time_seconds", {}, found.starttime),
        ("fluxsched_resident_memory_bytes", {}, found.resident_bytes),
        ("fluxsched_faults_total", {}, found.faults),
        ("fluxsched_jobs_submitted_total", {}, found.jobs.submitted),
        ("fluxsched_jobs_started_total", {}, found.jobs.started),
        ("fluxsched_job_wait_seconds", {}, found.jobs.wait),
        ("fluxsched_commit_seconds", {}, found.store.commits),
        ("fluxsched_unstored_rows", {}, found.store.waiting_rows),
        ("fluxsched_store_fault", {}, int(found.store.fault is not None)),
    ]
    named += [("fluxsched_targets", {"state": state}, count) for state, count in found.targets.items()]
    named += [("fluxsched_cores", {"state": state}, count) for state, count in found.cores.items()]
    named += [("fluxsched_jobs_ended_total", {"result": name}, count) for name, count in found.jobs.ended.items()]
    for group in found.groups:
        labels = {"group": group.name}
        named += [
            ("fluxsched_group_targets", labels, group.targets),
            ("fluxsched_group_usable_targets", labels, group.usable),
            ("fluxsched_group_leaving_targets", labels, group.leaving),
            ("fluxsched_group_acquired", labels, int(group.acquired)),
        ]
    for queue in found.queues:
        named.append(("fluxsched_jobs", {"queue": queue.name, "state": "pending"}, queue.pending))
        named.append(("fluxsched_jobs", {"queue": queue.name, "state": "running"}, queue.running))
    return named


def _of_peers(found: MetricsResponse) -> list[_Named]:
    peers = found.peers
    return [
        ("fluxsched_peers", {}, peers.connected),
        ("fluxsched_peers_lost_total", {}, peers.lost),
        ("fluxsched_streams", {}, peers.streams),
        ("fluxsched_open_requests", {}, peers.open_requests),
        ("fluxsched_unsent_messages", {}, peers.unsent_messages),
        ("fluxsched_unsent_bytes", {}, peers.unsent_bytes),
        ("fluxsched_messages_received_total", {}, peers.received),
        ("fluxsched_messages_sent_total", {}, peers.sent),
        ("fluxsched_messages_dropped_total", {}, peers.dropped),
    ]


def _of_scheduler(one: SchedulerAnswer) -> list[_Named]:
    """Of a scheduler of another's making anything may be missing."""
    labels = {"module": one.name}
    named: list[_Named] = [("fluxsched_scheduler_up", labels, int(one.stats is not None))]
    stats = one.stats or {}
    for group, figures in stats.get("groups", {}).items():
        for name, key in GROUP_FIGURES.items():
            named.append((name, {**labels, "group": group}, int(figures.get(key, 0))))
    for name, key in HISTOGRAMS.items():
        if key in stats:
            named.append((name, labels, msgspec.convert(stats[key], HistogramValue)))
    return named
