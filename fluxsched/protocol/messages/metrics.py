"""`instance.metrics`: an instance's figures for monitoring. Counts begin anew with each start of the instance."""

from __future__ import annotations

from fluxsched.protocol.messages.common import Integer, Payload, Size, WallTime


class HistogramValue(Payload, frozen=True, omit_defaults=False):
    """Histogram of a value: `counts[i]` times not above `bounds[i]`; the last count is of larger ones."""

    bounds: tuple[float, ...]
    counts: tuple[Size, ...]
    sum: float


class GroupMetrics(Payload, frozen=True, omit_defaults=False):
    """Targets of a group: its own, those of them that are leaving, and those that jobs may be put on."""

    name: str
    targets: Size
    leaving: Size
    usable: Size
    acquired: bool


class QueueMetrics(Payload, frozen=True, omit_defaults=False):
    """Active jobs of a queue (its name is empty if it has none): without resources, and with them."""

    name: str
    pending: Size
    running: Size


class StoreMetrics(Payload, frozen=True, omit_defaults=False):
    """Transactions by their time (seconds), rows that wait for the disk, and why nothing can be written, if so."""

    commits: HistogramValue
    waiting_rows: Size
    fault: str | None


class PeerMetrics(Payload, frozen=True, omit_defaults=False):
    """Connected peers, those lost without goodbye, open streams, requests that wait for answers, what is unsent, and
    messages to peers that were gone.
    """

    connected: Size
    lost: Size
    streams: Size
    open_requests: Size
    unsent_messages: Size
    unsent_bytes: Size
    received: Size
    sent: Size
    dropped: Size


class JobMetrics(Payload, frozen=True, omit_defaults=False):
    """Jobs submitted, started, and ended by result; seconds from submit to start."""

    submitted: Size
    started: Size
    ended: dict[str, Size]
    wait: HistogramValue


class MetricsResponse(Payload, frozen=True, omit_defaults=False):
    """All of it. Each target and each core is counted in one state."""

    version: str
    starttime: WallTime
    resident_bytes: Integer
    faults: Size
    targets: dict[str, Size]
    cores: dict[str, Size]
    groups: tuple[GroupMetrics, ...]
    queues: tuple[QueueMetrics, ...]
    jobs: JobMetrics
    store: StoreMetrics
    peers: PeerMetrics
