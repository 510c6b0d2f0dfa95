"""A request's id is the client's own matchtag, and everything that the instance logs on its behalf carries it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.logs.format import request_id

World = Any


def lines_of(path: Path, **fields: str) -> list[dict[str, str]]:
    """The lines that have these fields."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if fields.items() <= line.items()]


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("resource.drain", {"targets": "0", "reason": "fan"}),
        ("job-manager.queue-enable", {"enable": False, "reason": "x"}),
    ],
)
async def test_from_its_arrival_to_the_store_and_the_answer(world: World, topic: str, payload: Any) -> None:
    site = await world.bare(verbose=2, log_format="json")
    peer = world.second(site)
    tag = peer.send(topic, payload, tag=0xABCDEF)
    await peer.next(tag)
    await peer.settle()
    lines = lines_of(site.run_directory / "log", request="00abcdef", topic=topic)
    assert [line["text"].partition(" by ")[0].split(" ")[0] for line in lines] == ["<-", "stored", "->"]
    assert len({line["peer"] for line in lines}) == 1


async def test_a_fault_while_it_is_handled_and_another_after_it(world: World) -> None:
    site = await world.bare(log_format="json")
    peer, log = world.second(site), logging.getLogger("fluxsched.test")

    def handle(request: Any) -> None:
        log.warning("during")
        site.turns.post(lambda: log.warning("afterwards"))
        raise ArithmeticError("a bug")

    site.router.serve({"instance.bug": handle})
    await peer.refused("instance.bug", tag=7)
    await peer.settle()
    path = site.run_directory / "log"
    about = lines_of(path, request=request_id(7), topic="instance.bug")
    assert [line["text"].partition(":")[0] for line in about] == ["during", "instance.bug"]
    assert "ArithmeticError: a bug" in about[1]["traceback"]
    (after,) = lines_of(path, text="afterwards")
    assert "request" not in after


async def test_a_client_logs_the_same_id(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    site = await world.bare(verbose=2, log_format="json")
    logs.logger("client").setLevel(logging.DEBUG)
    client = await world.client(site)
    await client.drain("1", "fan")
    logs.logger("client").setLevel(logging.NOTSET)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (known,) = [line["text"].split()[1] for line in said if line["logger"] == "fluxsched.client"]
    assert lines_of(site.run_directory / "log", request=known.removesuffix(":"), topic="resource.drain")


async def test_clients_begin_with_different_ids(world: World) -> None:
    site = await world.bare()
    first, second = [await world.client(site) for _ in range(2)]
    tags = {handle.calls.start("instance.info").matchtag for handle in (first, second)}
    assert len(tags) == 2
