"""What is exported is Prometheus' text format, as its own parser reads it; page, board and alerts name what is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fluxsched.protocol.messages import metrics as msg
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.state.inventory import Inventory
from fluxsched.runtime.inventory.sources import fake_resources
from fluxsched.runtime.metrics.families import FAMILIES, SchedulerAnswer, text
from fluxsched.runtime.metrics.text import COUNTER, GAUGE, HISTOGRAM
from fluxsched.runtime.services.jobs.counts import JobCounts
from fluxsched.runtime.services.metrics import core_states, target_states

ROOT = Path(__file__).parents[3]
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


def parsed(page: str) -> dict[str, Any]:
    """Families by name, read by Prometheus' own client."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    return {family.name: family for family in parser.text_string_to_metric_families(page)}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(found)


def test_every_family_is_read_with_its_kind_and_values() -> None:
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


def test_buckets_add_up() -> None:
    found = parsed(text(METRICS, SCHEDULERS))
    for name, labels in (("fluxsched_commit_seconds", {}), ("fluxsched_scheduler_pass_seconds", {"module": "sched-a"})):
        buckets = [value(found, f"{name}_bucket", le=bound, **labels) for bound in ("0.5", "1.0", "+Inf")]
        assert buckets == [3, 3, 5]
        assert value(found, f"{name}_count", **labels) == 5
        assert value(found, f"{name}_sum", **labels) == 7.25


def test_what_is_told_of_peers() -> None:
    found = parsed(text(METRICS, ()))
    assert value(found, "fluxsched_messages_dropped_total") == 3
    assert value(found, "fluxsched_messages_sent_total") == 11


def test_of_an_instance_that_does_not_answer_that_is_all_that_is_said() -> None:
    found = parsed(text(None))
    assert set(found) == {"fluxsched_up", "fluxsched_sample_seconds"}
    assert value(found, "fluxsched_up") == 0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_follow_the_rules_of_prometheus(family: Any) -> None:
    assert (family.kind == COUNTER) == family.name.endswith("_total")
    assert family.kind != HISTOGRAM or family.name.endswith("_seconds")


def test_the_page_has_each_name_with_its_kind_and_labels() -> None:
    rows = re.findall(r"^\| `(fluxsched_\w+)` \| (\w+) \|([^|]*)\|", (ROOT / "rfc/operations.md").read_text(), re.M)
    assert {name: (kind, labels.strip()) for name, kind, labels in rows} == {
        name: (family.kind, ", ".join(f"`{label}`" for label in family.labels)) for name, family in FAMILIES.items()
    }


@pytest.mark.parametrize("path", ["examples/grafana.json", "examples/alerts.yml"])
def test_board_and_alerts_use_names_that_are_exported(path: str) -> None:
    suffixes = {HISTOGRAM: ("_bucket", "_sum", "_count")}
    known = {name + suffix for name, family in FAMILIES.items() for suffix in suffixes.get(family.kind, ("",))}
    used = set(NAME.findall((ROOT / path).read_text()))
    assert used
    assert used - known == set()


@pytest.mark.parametrize("path", ["examples/grafana.json", "examples/alerts.yml"])
def test_board_and_alerts_select_by_labels_and_values_that_exist(path: str) -> None:
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


def test_the_board_is_a_board() -> None:
    board = json.loads((ROOT / "examples/grafana.json").read_text())
    assert all(panel["targets"] and panel["title"] for panel in board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_alerts_are_rules() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    (group,) = yaml.safe_load((ROOT / "examples/alerts.yml").read_text())["groups"]
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in group["rules"])
