"""A handler that fails over a payload, or by a bug of ours: its sender is told, and the instance lives on."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxsched.errors import LocalProtocolError
from fluxsched.runtime.messaging.peers import RpcRequest

STREAMING = 0x40
Flux, World = Any, Any


@pytest.fixture
def log() -> Iterator[Callable[[], list[str]]]:
    """What the instance says of faults, with their stories."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("fluxsched").addHandler(handler)
    yield lambda: [f"{one.getMessage()} {one.exc_info and one.exc_info[1]!r}" for one in records]
    logging.getLogger("fluxsched").removeHandler(handler)


async def test_a_path_that_holds_nul_is_the_senders_fault(world: World, bare: Flux) -> None:
    for path in ("/etc/x\0y", "\0"):
        errnum, text = await bare.ask("resource.reload", {"path": path})
        assert errnum == errno.EINVAL
        assert "cannot be read: embedded null byte" in text
        assert await world.second(bare.instance).refused("resource.reload", {"path": path}) == (errnum, text)
    assert bare.instance.faults.count == 0


async def test_base64_that_is_not_ascii_is_the_senders_fault(bare: Flux) -> None:
    topic = f"shell-{await bare.submit('true')}.stdin"
    errnum, text = await bare.ask(topic, {"stream": "stdin", "rank": "all", "data": "\u20ac", "encoding": "base64"})
    assert (errnum, text.partition(":")[0]) == (errno.EINVAL, "data is not base64")
    assert bare.instance.faults.count == 0


def failing(exc: Exception) -> Callable[[RpcRequest], None]:
    def handler(request: RpcRequest) -> None:
        raise exc

    return handler


BUGS = [
    (KeyError("x"), errno.EIO, "test.bug: a fault of fluxsched ended this call (KeyError: 'x')"),
    (AssertionError("held twice"), errno.EIO, "AssertionError: held twice"),
    (RecursionError("too deep"), errno.EIO, "RecursionError: too deep"),
    (LocalProtocolError("wrong state"), errno.EPROTO, "wrong state"),
    (ValueError("no such value"), errno.EINVAL, "some value in the request cannot be used (ValueError: no such value)"),
    (OverflowError("too large"), errno.EINVAL, "some value in the request cannot be used"),
]


async def test_a_bug_in_a_handler_ends_the_call_at_both_endpoints(
    world: World, bare: Flux, log: Callable[[], list[str]]
) -> None:
    site, peer = bare.instance, world.second(bare.instance)
    for bug, errnum, said in BUGS:
        site.router.serve({"test.bug": failing(bug)})
        for found in (await bare.ask("test.bug"), await peer.refused("test.bug")):
            assert found[0] == errnum
            assert said in found[1]
        assert all("test.bug" in line and repr(bug) in line for line in log()[-2:])
    assert (await peer.ok("instance.stats-get"))["faults"] == site.faults.count == 2 * len(BUGS)


async def test_a_stream_that_a_bug_ends_is_ended_on_our_side_too(bare: Flux) -> None:
    ended = []

    def handler(request: RpcRequest) -> None:
        request.open_stream(lambda: ended.append(request.topic))
        raise KeyError("late")

    bare.instance.router.serve({"test.bug": handler})
    assert (await bare.next(bare.open("test.bug", {})))[0] == errno.EIO
    assert ended == ["test.bug"]


async def test_a_bug_behind_a_commit_costs_no_other_client_its_answer(world: World, bare: Flux) -> None:
    site, peer = bare.instance, world.second(bare.instance)

    def handler(request: RpcRequest) -> None:
        site.effects.after_commit(failing(KeyError("x")).__get__(request))
        site.effects.after_commit(request.respond)

    site.router.serve({"test.bug": handler})
    await peer.ok("test.bug")
    await peer.ok("resource.drain", {"targets": "0"})
    assert site.faults.count == 1


async def test_a_bug_in_long_work_is_the_answer_to_who_waits_for_it(world: World, bare: Flux) -> None:
    site, peer = bare.instance, world.second(bare.instance)

    def work() -> Iterator[None]:
        yield
        raise KeyError("half way")

    site.router.serve({"test.bug": lambda request: site.turns.spread(work(), request.failed)})
    assert (await peer.refused("test.bug"))[0] == errno.EIO
    assert site.faults.count == 1


async def test_a_bug_in_a_timer_or_a_posted_call_ends_no_other(bare: Flux) -> None:
    turns, seen = bare.instance.turns, []
    for call in (lambda: 1 // 0, lambda: seen.append("t")):
        turns.after(0.0, call)
        turns.post(call)
    while len(seen) < 2:
        await bare.ok("attr.get", {"name": "size"})
    assert bare.instance.faults.count == 2


async def test_a_bug_over_the_loss_of_a_peer_ends_no_other_callback(
    world: World, bare: Flux, eventually: Callable[..., Any]
) -> None:
    site, seen = bare.instance, []
    site.router.on_lost(lambda peer: {}[peer])
    site.router.on_lost(seen.append)
    peer = world.second(site)
    await peer.settle()
    peer.close()
    await eventually(lambda: seen)
    assert site.faults.count == 1


async def test_a_job_whose_start_hits_a_bug_fails_alone(flux: Flux, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(launch: Any) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(flux.instance.effects.executors["local"], "start", start)
    jobid = await flux.submit("true")
    events = await flux.events(jobid)
    assert "KeyError" in str([one for one in events if one["name"] == "exception"])
    assert flux.instance.faults.count == 1
