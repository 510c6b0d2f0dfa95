"""`fluxsched metrics`: a process of its own, an ordinary client, that serves an instance's figures at `GET /metrics`.

Law: a name, once released, keeps its meaning (rfc/operations.md lists them). Labels come from the configuration or are
states and results, so their number is bounded. An instance is asked once in SAMPLE_S at most; one that is gone, hangs
or is restarted is a figure (`fluxsched_up 0`), not an error, and is looked for anew at the next question. A client,
whatever it sends or does not read, holds one of CONNECTIONS_MAX places for REQUEST_S at most. The text is Prometheus'
format 0.0.4, written here and not by prometheus_client, since nothing is counted in this process.
"""

# Not compiled: a process of its own, on no hot path

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.client.aio import AsyncHandle
from fluxsched.errors import FluxschedError
from fluxsched.protocol.messages.instance import HistogramValue, MetricsResponse
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import parse_bind
from fluxsched.system.log import logger, set_up_logging
from fluxsched.system.processes import die_with


def export(uri: str | None, bind: str, *, public: bool, instance: int | None, told: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `told` receives the page's URL.

    `instance` is the process to end with, if any. Raises InvalidValue or Refused for an invalid address, FluxschedError
    for one that is not available.
    """
    host, port = parse_bind(bind, public=public)
    set_up_logging(None, 0)
    if instance is not None:
        die_with(instance)
    asyncio.run(_export(uri, host, port, told))


def check_bind(bind: str, *, public: bool) -> None:
    """Raise InvalidValue or Refused for an address that is wrong."""
    parse_bind(bind, public=public)


def once(uri: str | None) -> str:
    """Return the current metrics as text."""

    async def ask() -> str:
        sampler = Sampler(uri)
        try:
            return await sampler.text()
        finally:
            await sampler.close()

    return asyncio.run(ask())


async def _export(uri: str | None, host: str, port: int, told: Callable[[str], None]) -> None:
    sampler, ended = Sampler(uri), asyncio.Event()
    server = MetricsServer(sampler.text)
    told(await server.start(host, port))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, ended.set)
    with contextlib.suppress(asyncio.CancelledError):
        await ended.wait()
    await server.close()
    await sampler.close()


# ---- sampling for the exporter

log = logger("metrics")

SAMPLE_S = 1.0
"""An answer is as old as this at most, and the instance is asked no more often (seconds)."""
ANSWER_S = 4.0
"""Timeout of a request to the instance (seconds); Prometheus gives up after 10 s."""


class Sampler:
    """The figures of the instance at `uri`, or of the user's newest one."""

    def __init__(self, uri: str | None, *, sample_s: float = SAMPLE_S, answer_s: float = ANSWER_S) -> None:
        self._uri = uri
        self._sample_s, self._answer_s = sample_s, answer_s
        self._handle: AsyncHandle | None = None
        self._text = ""
        self._sampled_s: float | None = None
        self._sampling: asyncio.Task[None] | None = None
        self.samples = 0
        """Number of requests to the instance."""

    async def text(self) -> str:
        """Return all metrics as text. Concurrent requests share one request to the instance."""
        now_s = SystemClock.monotonic_s()
        if self._sampling is None and (self._sampled_s is None or now_s - self._sampled_s >= self._sample_s):
            self._sampling = asyncio.create_task(self._sample())
        if self._sampling is not None:
            await asyncio.shield(self._sampling)
        return self._text

    async def close(self) -> None:
        """Close the connection to the instance."""
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.__aexit__(None, None, None)

    async def _sample(self) -> None:
        begun_s = SystemClock.monotonic_s()
        self.samples += 1
        try:
            metrics, schedulers = await self._ask()
            self._text = text(metrics, schedulers, SystemClock.monotonic_s() - begun_s)
        except (FluxschedError, OSError, msgspec.ValidationError) as exc:
            log.warning("the instance did not answer: %s", exc)
            self._text = text(None, (), SystemClock.monotonic_s() - begun_s)
            await self.close()
        finally:
            self._sampled_s = SystemClock.monotonic_s()
            self._sampling = None

    async def _ask(self) -> tuple[MetricsResponse, tuple[SchedulerAnswer, ...]]:
        if self._handle is None:
            handle = AsyncHandle(self._uri)
            await handle.__aenter__()
            self._handle = handle
        asked, listed = await asyncio.gather(
            self._handle.rpc("instance.metrics", timeout_s=self._answer_s),
            self._handle.rpc("module.list", timeout_s=self._answer_s),
        )
        names = [each["name"] for each in listed["mods"] if each["path"] != "builtin"]
        stats = [self._handle.rpc("module.stats", {"name": name}, timeout_s=self._answer_s) for name in names]
        answers: list[Any] = await asyncio.gather(*stats, return_exceptions=True)
        found = [None if isinstance(each, BaseException) else each for each in answers]
        return msgspec.convert(asked, MetricsResponse), tuple(map(SchedulerAnswer, names, found))


# ---- the HTTP server

CONNECTIONS_MAX = 64
"""Connections at once: Prometheus has one. More are answered 503."""
HEAD_BYTES_MAX = 8192
"""Maximum size of a request's head; a longer one is answered 431."""
REQUEST_S = 5.0
"""Maximum duration of a connection (seconds)."""

Text = Callable[[], Awaitable[str]]
_STATUS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
           503: "Service Unavailable"}  # fmt: skip


class MetricsServer:
    """Serves `text()` at an address."""

    def __init__(self, text: Text, *, request_s: float = REQUEST_S) -> None:
        self._text = text
        self._request_s = request_s
        self.open = 0
        self._server: asyncio.Server | None = None
        self.refused = 0
        """Connections that were one too many."""

    async def start(self, host: str, port: int) -> str:
        """Listen; the page's URL. Raises FluxschedError for an address that cannot be had."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        except OSError as exc:
            reason = exc.strerror or str(exc)
            raise FluxschedError(f"cannot serve metrics at {host}:{port}: {reason}; bind another port") from exc
        where = self._server.sockets[0].getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{where[1]}/metrics"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if self.open > CONNECTIONS_MAX:
                self.refused += 1
                writer.write(_page(503, f"{CONNECTIONS_MAX} connections are open, which is the limit\n"))
            else:
                async with asyncio.timeout(self._request_s):
                    writer.write(await self._answer(reader))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self.open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), self._request_s)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _page(431, f"a request has {HEAD_BYTES_MAX} bytes at most\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        method, path = words[0], words[1].partition("?")[0] if len(words) > 1 else ""
        if method not in ("GET", "HEAD"):
            return _page(405, "only GET and HEAD\n")
        if path != "/metrics":
            return _page(404, "there is only /metrics\n")
        page = _page(200, await self._text())
        return page if method == "GET" else page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _page(status: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


# ---- metrics as text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

SampleLabels = Mapping[str, str]
Sample = tuple[SampleLabels, float | HistogramValue]


class Family(NamedTuple):
    """Samples of one name; `labels` are the names of each sample's labels."""

    name: str
    kind: str
    doc: str
    labels: tuple[str, ...] = ()


def lines(family: Family, samples: Iterable[Sample]) -> list[str]:
    """Return a family as lines of text; none without samples."""
    found = [line for labels, value in samples for line in _sample(family.name, labels, value)]
    if not found:
        return []
    return [f"# HELP {family.name} {family.doc}", f"# TYPE {family.name} {family.kind}", *found]


def _sample(name: str, labels: SampleLabels, value: float | HistogramValue) -> list[str]:
    if not isinstance(value, HistogramValue):
        return [f"{name}{_shown(labels)} {_number(value)}"]
    bounds = [*map(_number, value.bounds), "+Inf"]
    upto = list(accumulate(value.counts))
    buckets = [
        f"{name}_bucket{_shown({**labels, 'le': bound})} {count}" for bound, count in zip(bounds, upto, strict=True)
    ]
    return [*buckets, f"{name}_sum{_shown(labels)} {_number(value.sum)}", f"{name}_count{_shown(labels)} {upto[-1]}"]


def _shown(labels: SampleLabels) -> str:
    parts = [f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()]
    return f"{{{','.join(parts)}}}" if parts else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


# ---- families of metrics


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
"""Metrics that schedulers report for each of their groups."""

HISTOGRAMS: Final = {
    "fluxsched_scheduler_pass_seconds": "passes",
    "fluxsched_scheduler_considered_seconds": "considered",
}
"""Histograms that schedulers report once each."""


def text(metrics: MetricsResponse | None, schedulers: tuple[SchedulerAnswer, ...] = (), took_s: float = 0.0) -> str:
    """Return all families as text; `metrics` is None while the instance does not answer."""
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
    """Return the samples of a scheduler; any may be missing in one of another's making."""
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
