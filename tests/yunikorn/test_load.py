"""`si load`: what it sends, what it counts, and what it says when a service refuses or does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the scheduler interface is an extra: fluxsched[si]")
yaml = pytest.importorskip("yaml")

from fluxsched.errors import InvalidValue, Refused  # noqa: E402
from fluxsched.system.clock import SystemClock  # noqa: E402
from fluxsched.yunikorn.load import ASKS_MAX, NODES_MAX, QUEUES_MAX, SHAPES_MAX, Load, Measured, put, report, table  # noqa: E402  # noqa: E402  # noqa: E402
from fluxsched.yunikorn.wire import RMClient  # noqa: E402
from tests.yunikorn.fake_service import FakeService  # noqa: E402


async def measured(service: FakeService, tmp_path: Path, load: Load, rate: float = 0.0, limit_s: float = 30.0) -> Any:
    async with service.at(tmp_path / "s") as address:
        return await put(RMClient(address), load, SystemClock.monotonic_s, rate, limit_s)


async def test_all_is_registered_asked_for_and_counted(tmp_path: Path) -> None:
    service = FakeService()
    found = await measured(service, tmp_path, Load(nodes=3, asks=50, queues=4, node_batch=2, ask_batch=7))
    assert (found.allocated, len(found.latencies_s)) == (50, 50)
    assert len(service.nodes) == 3
    assert {application.queueName for application in service.applications.values()} == {f"root.q{n}" for n in range(4)}
    assert {ask.applicationID for ask in service.asks.values()} == set(service.applications)
    (root,) = yaml.safe_load(service.registrations[0].config)["partitions"][0]["queues"]
    assert [leaf["name"] for leaf in root["queues"]] == ["q0", "q1", "q2", "q3"]
    assert "50 of 50 asks allocated" in report(found)
    assert table(found)["allocated"] == 50


@pytest.mark.parametrize(("shapes", "sizes"), [(8, 8), (3, 3), (0, 40)])
async def test_asks_have_so_many_sizes(tmp_path: Path, shapes: int, sizes: int) -> None:
    service = FakeService()
    await measured(service, tmp_path, Load(nodes=1, asks=40, shapes=shapes))
    asked = [{name: q.value for name, q in ask.resourceAsk.resources.items()} for ask in service.asks.values()]
    assert len({tuple(sorted(size.items())) for size in asked}) == sizes
    (node,) = service.nodes.values()
    for kind, amount in node.schedulableResource.resources.items():
        assert amount.value >= sum(size[kind] for size in asked), "all of them fit"


async def test_a_paced_load_sends_each_ask_once(tmp_path: Path) -> None:
    service = FakeService()
    found = await measured(service, tmp_path, Load(nodes=2, asks=100), rate=5000.0)
    assert (found.allocated, len(service.asks)) == (100, 100)
    assert found.latency_s(0.5) <= found.latency_s(0.99) <= found.latency_s(1.0)


async def test_what_is_refused_ends_it_with_the_reason(tmp_path: Path) -> None:
    service = FakeService()
    service.refuses_nodes = "no nodes today"
    with pytest.raises(Refused, match="no nodes today"):
        await measured(service, tmp_path, Load(nodes=1, asks=1))


async def test_a_scheduler_that_does_nothing_is_not_waited_for_longer_than_allowed(tmp_path: Path) -> None:
    service = FakeService()
    service.allocates = False
    found = await measured(service, tmp_path, Load(nodes=1, asks=5), limit_s=0.2)
    assert found.allocated == 0
    assert "0 of 5 asks" in report(found)


async def test_without_a_service_the_address_is_named(tmp_path: Path) -> None:
    async with FakeService().at(tmp_path / "s") as address:
        pass
    with pytest.raises(Refused, match=str(address)):
        await put(RMClient(address), Load(nodes=1, asks=1), SystemClock.monotonic_s, 0.0, 5.0)


def test_latencies_are_read_from_the_sorted_list() -> None:
    found = Measured(Load(asks=100), 1.0, 1.0, tuple(float(each) for each in range(100)))
    assert [found.latency_s(share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 99.0]


@pytest.mark.parametrize(
    ("name", "most", "least"),
    [("nodes", NODES_MAX, 1), ("asks", ASKS_MAX, 1), ("shapes", SHAPES_MAX, 0), ("queues", QUEUES_MAX, 1)],
)
def test_numbers_have_limits(name: str, most: int, least: int) -> None:
    for number in (least, most):
        Load()._replace(**{name: number}).check()
    for number in (least - 1, most + 1):
        with pytest.raises(InvalidValue, match=name):
            Load()._replace(**{name: number}).check()
