"""The exporter of metrics, a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from fluxsched.config.inventory import fake_resources
from fluxsched.config.values import MetricsSettings, PageSettings
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.instance import instance as instance_module
from fluxsched.instance.instance import AGAIN_MAX_S, AGAIN_S, HelperProcess, metrics_kind, page_kind
from fluxsched.protocol.messages import instance as msg
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.services.instance import core_states, target_states
from fluxsched.services.job_effects import JobCounts
from fluxsched.services.metrics_http import (
    CONNECTIONS_MAX,
    COUNTER,
    FAMILIES,
    GAUGE,
    HEAD_BYTES_MAX,
    HISTOGRAM,
    MetricsServer,
    Sampler,
    SchedulerAnswer,
    text,
)
from fluxsched.system.files import PORT_MAX, parse_bind

# A helper process that cannot be started, or ends, is tried again, ever more seldom, and ends nothing else.


class Waits:
    """Turns that note delays, and run what is due when they are told to."""

    def __init__(self):
        self.delays_s = []
        self.now_s = 0.0
        self.clock = SimpleNamespace(monotonic_s=lambda: self.now_s)
        self._call = None

    def after(self, delay_s, call):
        self.delays_s.append(delay_s)
        self._call = call
        return SimpleNamespace(cancel=lambda: setattr(self, "_call", None))

    def due(self):
        call, self._call = self._call, None
        if call is not None:
            call()
        return call is not None


def test_it_is_tried_again_ever_more_seldom(monkeypatch, tmp_path):
    def start(command, log, ended):
        assert command[3:] == ["fluxsched", "metrics", "--uri", "u", "--bind", "b", "--instance", command[-1]]
        raise OSError("no more processes")

    monkeypatch.setattr(instance_module, "ChildProcess", start)
    turns = Waits()
    kind = metrics_kind(MetricsSettings("b"))
    assert kind is not None
    exporter = HelperProcess(turns, kind, "u", tmp_path)
    for _ in range(8):
        assert turns.due()
    assert turns.delays_s == [AGAIN_S * 2**n for n in range(6)] + [AGAIN_MAX_S] * 3
    exporter.close()
    assert not turns.due()


def test_after_a_long_run_it_is_tried_again_soon(monkeypatch, tmp_path):
    class Child:
        def __init__(self, command, log, ended):
            pass

        def why_ended(self, said):
            return "killed"

    monkeypatch.setattr(instance_module, "ChildProcess", Child)
    turns = Waits()
    kind = metrics_kind(MetricsSettings("b"))
    assert kind is not None
    exporter = HelperProcess(turns, kind, "u", tmp_path)
    for run_s in (0.0, 0.0, 0.0, AGAIN_MAX_S + 1, 0.0):
        turns.now_s += run_s
        exporter._ended()
        assert turns.due()
    assert turns.delays_s == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, AGAIN_S, 2 * AGAIN_S]


async def test_the_address_of_before_a_restart_is_not_taken_for_the_one_of_now(monkeypatch, tmp_path):
    class Child:
        def __init__(self, command, log, ended):
            pass

    monkeypatch.setattr(instance_module, "ChildProcess", Child)
    turns = Waits()
    kind = page_kind(PageSettings("127.0.0.1:0"), tmp_path, None)
    assert kind is not None
    assert kind.writes is not None
    kind.writes.write_text("http://old\n")
    page = HelperProcess(turns, kind, "u", tmp_path)
    assert await page.written(-1.0) == "none: it is not served yet"
    (tmp_path / "draft").write_text("http://new\n")
    (tmp_path / "draft").replace(kind.writes)
    assert await page.written(-1.0) == "http://new"


def test_without_an_address_nothing_is_started(tmp_path):
    assert metrics_kind(MetricsSettings()) is None
    assert page_kind(PageSettings(), tmp_path, None) is None


def test_the_page_is_told_all_that_the_configuration_says(tmp_path):
    kind = page_kind(PageSettings("127.0.0.1:0", True, ("a.example",)), tmp_path, None)
    assert kind is not None
    options = ["--bind", "127.0.0.1:0", "--public", "--name", "a.example", "--address-file", f"{tmp_path}/web.address"]
    assert (kind.command, kind.options) == ("web", options)


# The instance is asked once however many ask, and its absence is a figure.


ASKED = 1_000


def figures(page):
    return {name: float(value) for line in page.splitlines() if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}


async def test_figures_of_an_instance(world, timed, eventually):
    site = await world.instance(fake="4x4")
    client = await world.client(site)
    await client.wait(await client.submit(timed()))  # not counted if the scheduler knows later that it is ready
    long = await client.submit(timed("100s", nodes=2, exclusive=True))
    await client.wait(await client.submit(timed()))
    await client.drain("0", "fan")
    await client.drain("3", "fan")
    sampler = Sampler(site.uri, sample_s=0.0)
    considered = 'fluxsched_scheduler_considered_seconds_{}{{module="sched-fifo"}}'
    async with asyncio.timeout(60):  # the answer may overtake the end of a pass whose jobs have started
        while (found := figures(await sampler.text()))[considered.format("count")] < 2:
            await asyncio.sleep(0.01)
    await sampler.close()
    wanted = {
        "fluxsched_up": 1,
        'fluxsched_targets{state="draining"}': 1,
        'fluxsched_targets{state="drained"}': 1,
        'fluxsched_targets{state="allocated"}': 1,
        'fluxsched_targets{state="free"}': 1,
        'fluxsched_cores{state="allocated"}': 8,
        'fluxsched_cores{state="free"}': 4,
        'fluxsched_cores{state="down"}': 4,
        'fluxsched_group_usable_targets{group="default"}': 2,
        'fluxsched_jobs{queue="",state="running"}': 1,
        "fluxsched_jobs_submitted_total": 3,
        "fluxsched_jobs_started_total": 3,
        'fluxsched_jobs_ended_total{result="completed"}': 2,
        "fluxsched_job_wait_seconds_count": 3,
        "fluxsched_store_fault": 0,
        'fluxsched_scheduler_up{module="sched-fifo"}': 1,
        'fluxsched_scheduler_waiting_jobs{module="sched-fifo",group="default"}': 0,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["fluxsched_commit_seconds_count"] > 0
    assert found['fluxsched_scheduler_pass_seconds_count{module="sched-fifo"}'] > 0
    assert found[considered.format("count")] in (2, 3)
    assert found[considered.format("sum")] > 0
    assert found["fluxsched_resident_memory_bytes"] > 1 << 20
    await client.cancel(long)


@pytest.mark.slow
async def test_asked_a_thousand_times_the_instance_is_asked_once(world):
    site = await world.bare()
    sampler = Sampler(site.uri, sample_s=1_000.0)
    server = MetricsServer(sampler.text)
    url = await server.start("127.0.0.1", 0)
    port, before = int(url.split(":")[2].split("/")[0]), site.router.received

    async def ask():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    for _ in range(ASKED // 50):
        answers = await asyncio.gather(*[ask() for _ in range(50)])
        assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
    assert sampler.samples == 1
    assert site.router.received == before + 2, "instance.metrics and module.list"
    await server.close()
    await sampler.close()


async def test_an_instance_that_is_gone_is_down_and_found_again(world):
    site = await world.bare()
    sampler = Sampler(None, sample_s=0.0)
    assert figures(await sampler.text())["fluxsched_up"] == 1
    await world.stop(site)
    assert figures(await sampler.text())["fluxsched_up"] == 0
    await world.bare()
    assert figures(await sampler.text())["fluxsched_up"] == 1
    await sampler.close()


async def test_an_instance_that_does_not_answer_is_down(world):
    site = await world.bare()
    site.router.serve({"instance.metrics": lambda request: None})
    sampler = Sampler(site.uri, answer_s=0.05)
    assert figures(await sampler.text())["fluxsched_up"] == 0
    await sampler.close()


# The page is served to what asks for it, at a bounded cost to all that do not.


PAGE = "fluxsched_up 1\n"


async def page():
    return PAGE


@pytest.fixture
async def server():
    server = MetricsServer(page, request_s=60.0)  # as long as a test may take on a busy machine
    yield server
    await server.close()


async def port_of(server):
    url = await server.start("127.0.0.1", 0)
    return int(url.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))


async def asked(port, request):
    """Status and body of the answer, read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /metrics HTTP/1.1", 200, PAGE),
        ("GET /metrics?x=1 HTTP/1.0", 200, PAGE),
        ("HEAD /metrics HTTP/1.1", 200, ""),
        ("GET / HTTP/1.1", 404, "there is only /metrics\n"),
        ("GET /metrics/../../etc/passwd HTTP/1.1", 404, "there is only /metrics\n"),
        ("POST /metrics HTTP/1.1", 405, "only GET and HEAD\n"),
        ("GET", 404, "there is only /metrics\n"),
        ("\xff\0", 405, "only GET and HEAD\n"),
        ("GET /metrics" + "x" * HEAD_BYTES_MAX, 431, f"a request has {HEAD_BYTES_MAX} bytes at most\n"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_requests(server, request_line, status, body):
    port = await port_of(server)
    assert await asked(port, f"{request_line}\r\nHost: x\r\n\r\n".encode("latin-1")) == (status, body.encode())


async def test_connections_are_limited_and_places_come_free(server, eventually):
    port = await port_of(server)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
    status, body = await asked(port, b"")
    assert (status, body) == (503, f"{CONNECTIONS_MAX} connections are open, which is the limit\n".encode())
    assert server.refused == 1
    for _, writer in silent:
        writer.close()
    await eventually(lambda: server.open == 0)
    assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200


async def test_a_silent_client_loses_its_place():
    server = MetricsServer(page, request_s=0.05)
    port = await port_of(server)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics")
    assert await reader.read() == b""
    writer.close()
    await server.close()


async def test_a_port_in_use_is_said(server):
    port = await port_of(server)
    with pytest.raises(FluxschedError, match=f"cannot serve metrics at 127.0.0.1:{port}: .*bind another port"):
        await MetricsServer(page).start("127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("[::1]:9400", ("::1", 9400)),
        (f"127.9.9.9:{PORT_MAX}", ("127.9.9.9", PORT_MAX)),
    ],
)
def test_addresses(text, want):
    assert parse_bind(text, public=False) == want


@pytest.mark.parametrize("text", ["", "9400", ":9400", "127.0.0.1", f"127.0.0.1:{PORT_MAX + 1}", "host:1", "::1:٣"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidValue, match="address"):
        parse_bind(text, public=True)


@pytest.mark.parametrize("text", ["0.0.0.0:9400", "[::]:9400", "192.168.0.1:9400"])
def test_an_address_that_others_reach_must_be_allowed(text):
    with pytest.raises(Refused, match=r"can be reached from other hosts.*--public"):
        parse_bind(text, public=False)
    assert parse_bind(text, public=True)[1] == 9400


# What is exported is Prometheus' text format, as its own parser reads it; page, board and alerts name what is.


ROOT = Path(__file__).parents[2]
SELECTED = re.compile(r"\b(fluxsched_[a-z_]+)\{([^}]*)\}")
NAME = re.compile(r"\bfluxsched_[a-z_]+\b")
TIMES = msg.HistogramValue((0.5, 1.0), (3, 0, 2), 7.25)
ODD = 'a "b"\\\n'
METRICS = msg.MetricsResponse(
    version="1.2",
    starttime=12.5,
    resident_bytes=4096,
    faults=0,
    targets={"free": 3, "allocated": 1},
    cores={"free": 12, "allocated": 4},
    groups=(msg.GroupMetrics(ODD, 4, 0, 4, True),),
    queues=(msg.QueueMetrics("", 5, 1),),
    jobs=msg.JobMetrics(7, 2, {"completed": 1}, TIMES),
    store=msg.StoreMetrics(TIMES, 0, "disk full"),
    peers=msg.PeerMetrics(2, 0, 1, 1, 0, 0, 10, 11, 3),
)
PASSES = {"bounds": [0.5, 1.0], "counts": [3, 0, 2], "sum": 7.25}
SCHEDULERS = (
    SchedulerAnswer(
        "sched-a", {"groups": {"default": {"waiting": 5, "planned": 1}}, "passes": PASSES, "considered": PASSES}
    ),
    SchedulerAnswer("sched-b", None),
)


def parsed(page):
    """Families by name, read by Prometheus' own client."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    return {family.name: family for family in parser.text_string_to_metric_families(page)}


def value(families, name, **labels):
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(found)


def test_every_family_is_read_with_its_kind_and_values():
    found = parsed(text(METRICS, SCHEDULERS, 0.25))
    assert {f"{name}_total" if family.type == "counter" else name for name, family in found.items()} == set(FAMILIES)
    assert {family.type for family in found.values()} == {COUNTER, GAUGE, HISTOGRAM}
    assert value(found, "fluxsched_up") == 1
    assert value(found, "fluxsched_sample_seconds") == 0.25
    assert value(found, "fluxsched_group_targets", group=ODD) == 4
    assert value(found, "fluxsched_jobs", queue="", state="pending") == 5
    assert value(found, "fluxsched_store_fault") == 1
    assert value(found, "fluxsched_scheduler_waiting_jobs", module="sched-a", group="default") == 5
    assert [value(found, "fluxsched_scheduler_up", module=name) for name in ("sched-a", "sched-b")] == [1, 0]


def test_buckets_add_up():
    found = parsed(text(METRICS, SCHEDULERS))
    for name, labels in (("fluxsched_commit_seconds", {}), ("fluxsched_scheduler_pass_seconds", {"module": "sched-a"})):
        buckets = [value(found, f"{name}_bucket", le=bound, **labels) for bound in ("0.5", "1.0", "+Inf")]
        assert buckets == [3, 3, 5]
        assert value(found, f"{name}_count", **labels) == 5
        assert value(found, f"{name}_sum", **labels) == 7.25


def test_what_is_told_of_peers():
    found = parsed(text(METRICS, ()))
    assert value(found, "fluxsched_messages_dropped_total") == 3
    assert value(found, "fluxsched_messages_sent_total") == 11


def test_of_an_instance_that_does_not_answer_that_is_all_that_is_said():
    found = parsed(text(None))
    assert set(found) == {"fluxsched_up", "fluxsched_sample_seconds"}
    assert value(found, "fluxsched_up") == 0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_follow_the_rules_of_prometheus(family):
    assert (family.kind == COUNTER) == family.name.endswith("_total")
    assert family.kind != HISTOGRAM or family.name.endswith("_seconds")


def test_the_page_has_each_name_with_its_kind_and_labels():
    rows = re.findall(r"^\| `(fluxsched_\w+)` \| (\w+) \|([^|]*)\|", (ROOT / "rfc/operations.md").read_text(), re.M)
    assert {name: (kind, labels.strip()) for name, kind, labels in rows} == {
        name: (family.kind, ", ".join(f"`{label}`" for label in family.labels)) for name, family in FAMILIES.items()
    }


@pytest.mark.parametrize("path", ["examples/grafana.json", "examples/alerts.yml"])
def test_board_and_alerts_use_names_that_are_exported(path):
    suffixes = {HISTOGRAM: ("_bucket", "_sum", "_count")}
    known = {name + suffix for name, family in FAMILIES.items() for suffix in suffixes.get(family.kind, ("",))}
    used = set(NAME.findall((ROOT / path).read_text()))
    assert used
    assert used - known == set()


@pytest.mark.parametrize("path", ["examples/grafana.json", "examples/alerts.yml"])
def test_board_and_alerts_select_by_labels_and_values_that_exist(path):
    """A selector of another name or state selects nothing, and an alert on it never fires."""
    resources = fake_resources("1x1")
    module = ResourceModule(Inventory(resources, "configuration"), {}, now_s=0.0)
    fixed = {
        ("fluxsched_targets", "state"): {*target_states(module)[0]},
        ("fluxsched_cores", "state"): {*core_states(resources, resources.ranks, {})},
        ("fluxsched_jobs", "state"): {"pending", "running"},
        ("fluxsched_jobs_ended_total", "result"): {*JobCounts().value().ended},
    }
    asked = [
        (name, label, value)
        for name, selectors in SELECTED.findall((ROOT / path).read_text().replace('\\"', '"'))
        for label, values in re.findall(r'(\w+) *(?:=|!=|=~|!~) *"([^"]*)"', selectors)
        for value in values.split("|")
    ]
    assert asked
    for name, label, value in asked:
        assert label in FAMILIES[re.sub("_(bucket|sum|count)$", "", name)].labels, (name, label)
        assert value in fixed.get((name, label), {value}), (name, label, value)


def test_the_board_is_a_board():
    board = json.loads((ROOT / "examples/grafana.json").read_text())
    assert all(panel["targets"] and panel["title"] for panel in board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_alerts_are_rules():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    (group,) = yaml.safe_load((ROOT / "examples/alerts.yml").read_text())["groups"]
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in group["rules"])
