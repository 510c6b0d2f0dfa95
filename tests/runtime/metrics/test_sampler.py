"""The instance is asked once however many ask, and its absence is a figure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxsched.runtime.metrics import sampler as module
from fluxsched.runtime.metrics.sampler import Sampler
from fluxsched.runtime.metrics.server import MetricsServer

World = Any
ASKED = 1_000


def figures(page: str) -> dict[str, float]:
    return {name: float(value) for line in page.splitlines() if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}


async def test_figures_of_an_instance(world: World, timed: Any, eventually: Any) -> None:
    site = await world.instance(fake="4x4")
    client = await world.client(site)
    long = await client.submit(timed("100s", nodes=2, exclusive=True))
    await client.wait(await client.submit(timed()))
    await client.drain("0", "fan")
    await client.drain("3", "fan")
    sampler = Sampler(site.uri)
    found = figures(await sampler.text())
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
        "fluxsched_jobs_submitted_total": 2,
        "fluxsched_jobs_started_total": 2,
        'fluxsched_jobs_ended_total{result="completed"}': 1,
        "fluxsched_job_wait_seconds_count": 2,
        "fluxsched_store_fault": 0,
        'fluxsched_scheduler_up{module="sched-fifo"}': 1,
        'fluxsched_scheduler_waiting_jobs{module="sched-fifo",group="default"}': 0,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["fluxsched_commit_seconds_count"] > 0
    assert found['fluxsched_scheduler_pass_seconds_count{module="sched-fifo"}'] > 0
    considered = 'fluxsched_scheduler_considered_seconds_{}{{module="sched-fifo"}}'
    assert found[considered.format("count")] == 2
    assert found[considered.format("sum")] > 0
    assert found["fluxsched_resident_memory_bytes"] > 1 << 20
    await client.cancel(long)


async def test_asked_a_thousand_times_the_instance_is_asked_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_S", 1_000.0)
    site = await world.bare()
    sampler = Sampler(site.uri)
    server = MetricsServer(sampler.text)
    url = await server.start("127.0.0.1", 0)
    port, before = int(url.split(":")[2].split("/")[0]), site.router.received

    async def ask() -> bytes:
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


async def test_an_instance_that_is_gone_is_down_and_found_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_S", 0.0)
    site = await world.bare()
    sampler = Sampler(None)
    assert figures(await sampler.text())["fluxsched_up"] == 1
    await world.stop(site)
    assert figures(await sampler.text())["fluxsched_up"] == 0
    await world.bare()
    assert figures(await sampler.text())["fluxsched_up"] == 1
    await sampler.close()


async def test_an_instance_that_does_not_answer_is_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    site = await world.bare()
    site.router.serve({"instance.metrics": lambda request: None})
    sampler = Sampler(site.uri)
    assert figures(await sampler.text())["fluxsched_up"] == 0
    await sampler.close()
