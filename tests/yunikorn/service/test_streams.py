"""Streams of a service: binding, replacement, loss, shutdown, and what a wrong message costs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("grpc")

import grpc

from fluxsched.errors import InvalidValue
from fluxsched.yunikorn import messages
from fluxsched.yunikorn import service as service_module
from fluxsched.yunikorn.machine import MANAGERS_MAX, UNREAD_ITEMS_MAX, SIMachine
from fluxsched.yunikorn.messages import ALLOCATIONS, KINDS, MESSAGE_BYTES_MAX, NODES, PAUSED_S_MAX, Observed
from fluxsched.yunikorn.service import DETAIL_BYTES_MAX, WATCH_UNREAD_MAX, Watcher, end_of
from fluxsched.yunikorn.wire import Address

from .conftest import RPCS, WAIT_S, Applying, Client, Clock

Code = grpc.StatusCode


async def test_a_stream_is_bound_by_its_first_message_and_takes_no_other_rm_id(client: Client) -> None:
    await client.register()
    await client.register("other")
    stream = await client.bound(NODES)
    await stream.send(rmID="other")
    code, detail = await stream.end()
    assert code is Code.INVALID_ARGUMENT
    assert detail == "this stream is bound to rmID 'rm', not to 'other': open one for each"


@pytest.mark.parametrize("kind", KINDS)
async def test_before_registration_a_stream_is_refused(client: Client, kind: str) -> None:
    stream = client.stream(kind)
    await stream.send(rmID="rm")
    code, detail = await stream.end()
    assert (code, detail) == (Code.FAILED_PRECONDITION, "resource manager 'rm' is not registered: register it first")


async def test_before_registration_other_calls_are_refused(client: Client) -> None:
    request = messages.UpdateConfigurationRequest(rmID="rm")
    watch = client.channel.unary_stream(client.method("Watch").path)
    watching = watch(messages.WatchRequest(rmID="rm").SerializeToString())
    for call in (client.call("UpdateConfiguration", request), watching.read()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is Code.FAILED_PRECONDITION


async def test_a_newer_stream_of_the_kind_replaces_the_old_one(client: Client) -> None:
    await client.register()
    old = await client.bound(ALLOCATIONS)
    other = await client.bound(NODES)
    new = client.stream(ALLOCATIONS)
    await new.send(rmID="rm")
    assert await old.end() == (Code.ABORTED, "a newer stream of allocations has replaced this one")
    rm = await client.rm()
    assert (rm["state"], rm["streams"]) == ("Running", [NODES, ALLOCATIONS])
    assert not other.call.done()
    assert not new.call.done()


async def test_another_registration_ends_all_streams_and_new_ones_may_come_at_once(client: Client) -> None:
    await client.register()
    streams = [await client.bound(kind) for kind in KINDS]
    await client.register()
    new = await client.bound(NODES)
    for stream in streams:
        assert await stream.end() == (Code.ABORTED, "another registration of this rmID has replaced this one")
    assert (await client.rm())["streams"] == [NODES]
    assert not new.call.done()


async def test_a_bad_registration_leaves_the_one_before_as_it_was(client: Client) -> None:
    await client.register()
    stream = await client.bound(NODES)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.register(config="bad")
    assert (caught.value.code(), caught.value.details()) == (Code.INVALID_ARGUMENT, "queues[0].name: bad")
    assert not stream.call.done()
    assert (await client.rm())["streams"] == [NODES]


async def test_a_lost_manager_is_paused_and_then_gone(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "CANCEL_S", WAIT_S)
    await client.register()
    streams = [await client.bound(NODES), await client.bound(ALLOCATIONS)]
    streams[0].call.cancel()
    assert (await client.eventually("rm", lambda rm: rm["streams"] == [ALLOCATIONS]))["state"] == "Running"
    streams[1].call.cancel()
    await client.eventually("rm", lambda rm: rm["state"] == "Paused")
    again = await client.bound(NODES)
    assert (await client.rm())["state"] == "Running"
    again.call.cancel()
    await client.eventually("rm", lambda rm: rm["state"] == "Paused")
    clock.now_s += PAUSED_S_MAX
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.rm()
    assert caught.value.code() is Code.FAILED_PRECONDITION


async def test_a_manager_that_half_closes_all_shuts_down(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "CANCEL_S", 0.1)
    await client.register()
    nodes, allocations = await client.bound(NODES), await client.bound(ALLOCATIONS)
    await nodes.half_close()
    assert (await client.rm())["state"] == "Running"
    await allocations.half_close()
    for stream in (nodes, allocations):
        assert await stream.end() == (Code.OK, "")
    with pytest.raises(grpc.aio.AioRpcError):
        await client.rm()


async def test_a_stream_that_sends_nothing_may_end(client: Client) -> None:
    stream = client.stream(NODES)
    await stream.half_close()
    assert await stream.end() == (Code.OK, "")


HALF = messages.NodeRequest(nodes=[{"nodeID": "n1"}], rmID="rm").SerializeToString()[:-2]


@pytest.mark.parametrize("kind", KINDS)
async def test_half_a_message_is_its_senders_fault(client: Client, kind: str) -> None:
    await client.register()
    stream = await client.bound(kind)
    await stream.send(HALF)
    code, detail = await stream.end()
    assert code is Code.INVALID_ARGUMENT
    assert detail == f"{len(HALF)} bytes are no {stream.method.request.DESCRIPTOR.full_name}: send a whole message"
    await client.bound(kind)


async def test_half_a_registration_is_its_senders_fault(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call("RegisterResourceManager", data=b"\x0a\x7fsecret")
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert "secret" not in caught.value.details()


async def test_a_message_above_the_limit_costs_its_stream(client: Client) -> None:
    await client.register()
    await client.register("other")
    other = await client.bound(NODES, "other")
    stream = await client.bound(ALLOCATIONS)
    await stream.send(asks=[{"allocationKey": "x" * 1024}] * (16 << 10), rmID="rm")
    code, detail = await stream.end()
    assert code is Code.RESOURCE_EXHAUSTED
    assert str(MESSAGE_BYTES_MAX) in detail
    assert not other.call.done()


@pytest.mark.slow
async def test_what_was_not_written_when_a_stream_broke_goes_with_the_next(client: Client, machine: Applying) -> None:
    await client.register()
    await client.bound(ALLOCATIONS)
    slow = await client.bound(NODES)
    names = [f"{'n' * 1000}{index}" for index in range(1500)]
    for name in names:
        await slow.send(nodes=[{"nodeID": name, "action": 1}], rmID="rm")
    await client.eventually("rm", lambda rm: machine.answers == len(names))
    read: list[str] = []
    while len(read) < 10:
        read += [node.nodeID for node in (await slow.read()).accepted]
    slow.call.cancel()
    again = await client.bound(NODES)
    assert read == names[: len(read)]
    left = [node.nodeID for node in (await again.read()).accepted]
    rest = names[names.index(left[0]) :]  # what was under way in the broken stream is lost with it
    assert 100 < len(rest) <= len(names) - len(read)  # nothing read comes again, and most of what was not read comes
    while len(left) < len(rest):
        left += [node.nodeID for node in (await again.read()).accepted]
    assert left == rest


async def test_a_manager_that_reads_nothing_gets_no_decisions_and_others_do(client: Client) -> None:
    await client.register("slow")
    await client.register("quick")
    slow, quick = await client.bound(NODES, "slow"), await client.bound(NODES, "quick")
    names = ["n" * 100] * 1000
    for _ in range(40):
        await slow.send(nodes=[{"nodeID": name, "action": 1} for name in names], rmID="slow")
    rm = await client.eventually("slow", lambda rm: rm["unread"] >= UNREAD_ITEMS_MAX)
    assert rm["backlog"] > 0
    await quick.send(nodes=[{"nodeID": "n1", "action": 1}], rmID="quick")
    assert [node.nodeID for node in (await quick.read()).accepted] == ["n1"]
    read = 0
    while read < 40 * len(names):
        response = await slow.read()
        read += len(response.accepted) + len(response.rejected)
    assert (await client.rm("slow"))["unread"] == 0


async def test_a_watcher_that_does_not_read_is_ended() -> None:
    watcher = Watcher(asyncio.get_running_loop().create_future())
    watcher.put(Observed("rm", (None,) * WATCH_UNREAD_MAX, ()))
    assert not watcher.ending.done()
    watcher.put(Observed("rm", (), (None,)))
    end = watcher.ending.result()
    assert (end.code, str(WATCH_UNREAD_MAX) in end.detail) == (Code.RESOURCE_EXHAUSTED, True)


async def test_what_is_said_at_an_end_fits_into_its_trailers(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call("StateDump", messages.StateDumpRequest(rmID="x"))
    assert caught.value.details() == "resource manager 'x' is not registered: register it first"
    end = end_of(InvalidValue("é" * DETAIL_BYTES_MAX))
    assert len(quote(end.detail)) <= DETAIL_BYTES_MAX + 100
    assert re.search(r"é \.\.\. \(\d+ more characters\)$", end.detail)
    assert end_of(InvalidValue("x" * DETAIL_BYTES_MAX)).detail == "x" * DETAIL_BYTES_MAX


async def test_calls_have_a_limit(machine: SIMachine, clock: Clock, tmp_path: Path, monkeypatch: Any) -> None:
    assert service_module.CALLS_MAX >= 4 * MANAGERS_MAX
    monkeypatch.setattr(service_module, "CALLS_MAX", 10)
    service = service_module.Service(machine, clock)
    address = await service.start(Address(path=tmp_path / "s"), None)
    async with grpc.aio.insecure_channel(str(address)) as channel:
        calls = [channel.stream_stream(RPCS[NODES].path)() for _ in range(11)]
        ends = [asyncio.create_task(call.code()) for call in calls]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert [end.result() for end in done] == [Code.RESOURCE_EXHAUSTED]
