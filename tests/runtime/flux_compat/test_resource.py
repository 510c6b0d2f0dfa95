"""What stock clients ask about resources and the instance: what Flux 0.88 was seen to answer is there, in its types."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.flux_compat.instance import ABSENT

RECORDED = [
    json.loads(line) for line in (Path(__file__).parent / "recordings/flux_resource.jsonl").read_text().splitlines()
]
"""Requests of stock commands and their answers [errnum, payload], by a Flux of four ranks in the order of asking."""
STREAMING, GUEST = 0x4B, 6
BY_IDSET = {"drain"}
"""Objects whose keys are data."""
NOT_OURS = {"journal", "config"}
"""Figures of parts of Flux's job manager that an instance of ours does not have; no command shows them."""


@pytest.fixture
async def four(world: Any, connect: Any) -> Any:
    """A stock client at an instance of four targets."""
    async with connect(await world.bare(fake="4x2")) as client:
        yield client


def same_shape(flux: Any, ours: Any, where: str = "") -> None:
    """Everything of Flux's is in ours, of the same JSON type: C clients take no integer for a real."""
    assert type(ours) is type(flux), f"{where}: {ours!r} is not like {flux!r}"
    if isinstance(flux, dict):
        assert where.rpartition(".")[2] in BY_IDSET or not flux.keys() - ours.keys() - NOT_OURS, (where, ours)
        for key, value in flux.items():
            if key in ours:
                same_shape(value, ours[key], f"{where}.{key}")
    if isinstance(flux, list) and flux:
        assert ours, f"{where} is empty"
        same_shape(flux[0], ours[0], f"{where}[0]")


async def test_every_recorded_request_is_answered_as_by_flux(four: Any) -> None:
    for one in RECORDED:
        if one["flags"] & 0x40:
            continue
        errnum, payload = await four.ask(one["topic"], one["payload"])
        ((wanted, answer),) = one["answers"]
        assert errnum == wanted, (one, payload)
        if not errnum:
            same_shape(answer, payload, one["topic"])


async def test_the_journal_tells_its_history_then_marks_it_and_ends_when_canceled(four: Any) -> None:
    await four.ok("resource.drain", {"targets": "1", "reason": "bad"})
    tag = four.open("resource.journal", {})
    first, define, rest, mark = [(await four.next(tag))[1] for _ in range(4)]
    assert [event["name"] for part in (first, define, rest) for event in part["events"]] == [
        "restart", "resource-define", "online", "drain",
    ]  # fmt: skip
    assert (define["R"]["execution"]["nodelist"], mark) == (["fake[0-3]"], {"events": []})
    recorded = next(one for one in RECORDED if one["topic"] == "resource.journal")
    same_shape(recorded["answers"][1][1], define)
    await four.ok("resource.undrain", {"targets": "1"})
    assert (await four.next(tag))[1]["events"][0]["name"] == "undrain"
    four.open("resource.journal-cancel", {"matchtag": tag}, flags=0x0F)
    assert (await four.next(tag))[0] == errno.ENODATA


@pytest.mark.parametrize("payload", [None, {}])
async def test_acquire_without_a_group_is_todays_rfc(four: Any, payload: Any) -> None:
    tag = four.open("resource.acquire", payload)
    errnum, first = await four.next(tag)
    assert (errnum, first["up"], first["resources"]["execution"]["R_lite"][0]["rank"]) == (0, "0-3", "0-3")
    await four.ok("resource.drain", {"targets": "2"})
    assert await four.next(tag) == (0, {"down": "2"})
    await four.ok("resource.undrain", {"targets": "2"})
    assert await four.next(tag) == (0, {"up": "2"})


async def test_after_a_mute_acquirers_hear_of_nothing(four: Any) -> None:
    tag = four.open("resource.acquire", {})
    await four.next(tag)
    await four.ok("resource.acquire-mute", {})
    await four.ok("resource.drain", {"targets": "2"})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(four.next(tag), 0.05)


async def test_reload_takes_an_r_file_and_no_xml(four: Any, world: Any) -> None:
    status = await four.ok("resource.status")
    status["R"]["execution"]["R_lite"][0]["children"]["core"] = "0-3"
    path = str(world.write("R.json", json.dumps(status["R"])))
    errnum, text = await four.ask("resource.reload", {"path": path, "xml": True, "force": False})
    assert (errnum, "hwloc" in text) == (errno.EINVAL, True)
    answer = await four.ok("resource.reload", {"path": path, "xml": False, "force": False})
    assert answer == {"changed": [], "restart": [], "modules": []}  # of the configuration; Flux's client looks at none
    assert (await four.ok("resource.status"))["R"]["execution"]["R_lite"][0]["children"]["core"] == "0-3"


async def test_waiting_until_so_many_are_online(four: Any) -> None:
    assert await four.ok("resource.monitor-waitup", {"up": 4}) is None
    assert await four.ask("resource.monitor-waitup", {"up": 5}) == (
        errno.EINVAL, "5 targets cannot be online: there are 4",
    )  # fmt: skip
    fewer = four.open("resource.monitor-waitup", {"up": 3}, flags=0x0B)
    four.instance.resource.perform(four.instance.resource.module.set_offline(
        four.instance.resource.targets("1"), four.instance.turns.wall_s))  # fmt: skip
    assert await four.next(fewer) == (0, None)


async def test_a_module_may_still_serve_sched_to_all(flux: Any) -> None:
    listed = (await flux.ok("module.list"))["mods"]
    assert [one["services"] for one in listed if one["name"] == "sched-fifo"] == [["sched", "sched-fifo"]]
    assert (await flux.ok("sched.resource-status")) == (await flux.ok("resource.sched-status"))
    pinged = await flux.ok("sched-fifo.ping", {"seq": 3})
    assert pinged["seq"] == 3
    assert pinged.keys() == {"seq", "route", "rank", "userid", "rolemask"}, "flux ping reads all of them"


async def test_modules_of_flux_are_refused_with_a_sentence_and_ours_are_loaded(flux: Any) -> None:
    asked = {"path": "sched-simple", "args": ["mode=limited"], "exec": False, "name": "x"}  # flux-core 0.88
    assert await flux.ask("module.load", asked) == (
        errno.ENOSYS, "modules of Flux are not loaded here: load a scheduler with `fluxsched module load`",
    )  # fmt: skip
    await flux.ok("module.remove", {"name": "sched-fifo", "cancel": False})
    assert (await flux.ok("module.load", {"spec": "firstfit"}))["name"] == "sched-firstfit"


async def test_what_is_not_there_is_said(four: Any) -> None:
    answers = [
        await four.ask("kvs.lookup-plus", {"key": "x"}), await four.ask("resource.topo-get"),
        await four.ask("groups.get", {"name": "nobody"}), await four.ask("resource.status", nodeid=3),
        await four.ask("groups.get", {}),
    ]  # fmt: skip
    assert [errnum for errnum, _ in answers] == [
        errno.ENOSYS, errno.ENOSYS, errno.ENOENT, errno.EHOSTUNREACH, errno.EPROTO,
    ]  # fmt: skip
    assert [text for _, text in answers][:2] == [
        f"No service matching kvs.lookup-plus is registered: {ABSENT['kvs']}",
        "Unknown service method 'resource.topo-get'",
    ]  # fmt: skip


@pytest.mark.parametrize("service", ABSENT)
async def test_what_to_use_instead_of_a_service_of_flux(four: Any, service: str) -> None:
    errnum, text = await four.ask(f"{service}.start")
    assert (errnum, text) == (errno.ENOSYS, f"No service matching {service}.start is registered: {ABSENT[service]}")


@pytest.mark.parametrize(
    "payload",
    [b"{}", b"{\0", b"[]\0", b"7\0", b"\xff\0", b'{"a": 123456789012345678901234567890}\0', b'{"a":' * 3000 + b"\0"],
)
async def test_a_payload_that_is_no_json_object_is_the_senders_fault(four: Any, payload: bytes) -> None:
    errnum, text = await four.ask("attr.get", payload)
    assert (errnum, text.partition(":")[0]) == (errno.EPROTO, "payload")


async def test_a_guest_may_look_and_nothing_more(four: Any) -> None:
    four.userid, four.rolemask = os.getuid() + 1, GUEST
    payloads = {"attr.get": {"name": "size"}}
    for topic in (
        "attr.get", "config.get", "instance.ping", "job-manager.ping", "job-manager.queue-list", "module.list",
        "resource.ping", "resource.sched-status", "resource.stats-get", "resource.status", "state-machine.get",
        "attr.list", "broker.ping", "sched.resource-status",
    ):  # fmt: skip
        errnum, text = await four.ask(topic, payloads.get(topic))
        assert errnum == 0, (topic, text)
    pinged = await four.ok("resource.ping", {"seq": 1})
    assert (pinged["userid"], pinged["rolemask"]) == (four.userid, GUEST)
    assert await four.ask("resource.drain", {"targets": "0"}) == (errno.EPERM, "Request requires owner credentials")
    for topic in ("resource.acquire", "instance.stop", "module.load", "nobody.knows"):
        assert await four.ask(topic, {"targets": "0"}) == (errno.EPERM, "Request requires owner credentials")
    four.open("instance.stop", None, flags=0x0D)
    await asyncio.sleep(0.02)
    assert not four.instance.ended.done()


async def test_others_come_in_only_where_the_configuration_says_so(world: Any) -> None:
    bound = f"local://{world.directory}/open"
    for access, mode in (("false", 0o600), ("true", 0o666)):
        config = f"[[resource.config]]\nhosts = 'a'\ncores = '0'\n[access]\nallow-guest-user = {access}\n"
        instance = await world.bare(config=config, bind=(bound,))
        inner, outer = [Path(uri.removeprefix("local://")) for uri in (instance.local_uri, bound)]
        assert (inner.stat().st_mode & 0o777, outer.stat().st_mode & 0o777) == (0o600, mode)
        await world.stop(instance)


PRETENDER = """
import os, socket, struct, sys
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    verdict = client.recv(1)[0]
    print(verdict)
    for kind, topic in ((1, b"resource.ping"), (1, b"resource.drain"), (2, b"sched.alloc")):
        header = struct.pack(">BBBBIIII", 0x8E, 1, kind, 0x0B, 0, 1, 0, 1)  # says that it is root, and the owner
        body = b"".join(bytes([len(part)]) + part for part in (b"", topic, b'{"id": 1, "type": 2}\\0', header))
        if not verdict:
            client.sendall(bytes.fromhex("1200eeff") + struct.pack(">I", len(body)) + body)
            print(client.recv(4096).partition(topic)[2][1:-21].rstrip(b"\\0").decode())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("allowed", ["false", "true"])
async def test_another_user_is_who_the_kernel_says(world: Any, allowed: str) -> None:
    world.directory.chmod(0o711)
    config = f"[[resource.config]]\nhosts = 'a'\ncores = '0'\n[access]\nallow-guest-user = {allowed}\n"
    await world.bare(config=config, bind=(f"local://{world.directory}/open",))
    (world.directory / "open").chmod(0o666)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PRETENDER, world.directory / "open"],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    verdict, *said = done.stdout.splitlines()
    if allowed == "false":
        assert (int(verdict), said) == (errno.EPERM, [])
        return
    pinged, refused, cut_off = said
    assert (json.loads(pinged)["userid"], json.loads(pinged)["rolemask"]) == (65534, GUEST)
    assert (refused, cut_off) == ("Request requires owner credentials", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_a_user_is_an_admin_where_the_configuration_says_so(world: Any) -> None:
    world.directory.chmod(0o711)
    config = "[[resource.config]]\nhosts = 'a'\ncores = '0'\n[access]\nadmin-users = ['65534']\n"
    await world.bare(config=config, bind=(f"local://{world.directory}/open",))
    assert (world.directory / "open").stat().st_mode & 0o777 == 0o666
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PRETENDER, world.directory / "open"],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    verdict, pinged, drained, cut_off = done.stdout.splitlines()
    assert (verdict, cut_off) == ("0", "")
    assert (json.loads(pinged)["userid"], json.loads(pinged)["rolemask"]) == (65534, GUEST | 8)
    assert "missing required field `targets`" in drained, "it may drain"


async def test_the_answer_to_a_large_request_comes_back_whole(four: Any) -> None:
    pad = "p" * (8 << 20)
    assert (await four.ok("resource.ping", {"pad": pad}))["pad"] == pad
