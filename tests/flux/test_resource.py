"""Resources for unmodified Flux clients, and who they are."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobid import format_f58
from fluxsched.core.role import Role
from fluxsched.errors import LocalProtocolError
from fluxsched.flux.endpoint import ABSENT
from fluxsched.messaging.peers import NO_USER
from fluxsched.protocol.topics import LOCAL_TOPICS, RIGHTS, Scope

# What stock clients ask about resources and the instance: what Flux 0.88 was seen to answer is there, in its types.


RECORDED = [
    json.loads(line) for line in (Path(__file__).parent / "recordings/flux_resource.jsonl").read_text().splitlines()
]
"""Requests of stock commands and their answers [errnum, payload], by a Flux of four ranks in the order of asking."""
STREAM, GUEST = 0x4B, 6
BY_IDSET = {"drain"}
"""Objects whose keys are data."""
NOT_OURS = {"journal", "config"}
"""Figures of parts of Flux's job manager that an instance of ours does not have; no command shows them."""


@pytest.fixture
async def four(world, connect):
    """A stock client at an instance of four targets."""
    async with connect(await world.bare(fake="4x2")) as client:
        yield client


def same_shape(flux, ours, where=""):
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


async def test_every_recorded_request_is_answered_as_by_flux(four):
    for one in RECORDED:
        if one["flags"] & 0x40:
            continue
        errnum, payload = await four.ask(one["topic"], one["payload"])
        ((wanted, answer),) = one["answers"]
        assert errnum == wanted, (one, payload)
        if not errnum:
            same_shape(answer, payload, one["topic"])


async def test_the_journal_tells_its_history_then_marks_it_and_ends_when_canceled(four):
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
async def test_acquire_without_a_group_is_todays_rfc(four, payload):
    tag = four.open("resource.acquire", payload)
    errnum, first = await four.next(tag)
    assert (errnum, first["up"], first["resources"]["execution"]["R_lite"][0]["rank"]) == (0, "0-3", "0-3")
    await four.ok("resource.drain", {"targets": "2"})
    assert await four.next(tag) == (0, {"down": "2"})
    await four.ok("resource.undrain", {"targets": "2"})
    assert await four.next(tag) == (0, {"up": "2"})


async def test_after_a_mute_acquirers_hear_of_nothing(four):
    tag = four.open("resource.acquire", {})
    await four.next(tag)
    await four.ok("resource.acquire-mute", {})
    await four.ok("resource.drain", {"targets": "2"})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(four.next(tag), 0.05)


async def test_reload_takes_an_r_file_and_no_xml(four, world):
    status = await four.ok("resource.status")
    status["R"]["execution"]["R_lite"][0]["children"]["core"] = "0-3"
    path = str(world.write("R.json", json.dumps(status["R"])))
    errnum, text = await four.ask("resource.reload", {"path": path, "xml": True, "force": False})
    assert (errnum, "hwloc" in text) == (errno.EINVAL, True)
    answer = await four.ok("resource.reload", {"path": path, "xml": False, "force": False})
    assert answer == {"changed": [], "restart": [], "modules": []}  # of the configuration; Flux's client looks at none
    assert (await four.ok("resource.status"))["R"]["execution"]["R_lite"][0]["children"]["core"] == "0-3"


async def test_waiting_until_so_many_are_online(four):
    assert await four.ok("resource.monitor-waitup", {"up": 4}) is None
    assert await four.ask("resource.monitor-waitup", {"up": 5}) == (
        errno.EINVAL, "5 targets cannot be online: there are 4",
    )  # fmt: skip
    fewer = four.open("resource.monitor-waitup", {"up": 3}, flags=0x0B)
    four.instance.resource.perform(four.instance.resource.module.set_offline(
        four.instance.resource.targets("1"), four.instance.turns.wall_s))  # fmt: skip
    assert await four.next(fewer) == (0, None)


async def test_a_module_may_still_serve_sched_to_all(flux):
    listed = (await flux.ok("module.list"))["mods"]
    assert [one["services"] for one in listed if one["name"] == "sched-fifo"] == [["sched", "sched-fifo"]]
    assert (await flux.ok("sched.resource-status")) == (await flux.ok("resource.sched-status"))
    pinged = await flux.ok("sched-fifo.ping", {"seq": 3})
    assert pinged["seq"] == 3
    assert pinged.keys() == {"seq", "route", "rank", "userid", "rolemask"}, "flux ping reads all of them"


async def test_modules_of_flux_are_refused_with_a_sentence_and_ours_are_loaded(flux):
    asked = {"path": "sched-simple", "args": ["mode=limited"], "exec": False, "name": "x"}  # flux-core 0.88
    assert await flux.ask("module.load", asked) == (
        errno.ENOSYS, "modules of Flux are not loaded here: load a scheduler with `fluxsched module load`",
    )  # fmt: skip
    await flux.ok("module.remove", {"name": "sched-fifo", "cancel": False})
    assert (await flux.ok("module.load", {"spec": "firstfit"}))["name"] == "sched-firstfit"


async def test_what_is_not_there_is_said(four):
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
async def test_what_to_use_instead_of_a_service_of_flux(four, service):
    errnum, text = await four.ask(f"{service}.start")
    assert (errnum, text) == (errno.ENOSYS, f"No service matching {service}.start is registered: {ABSENT[service]}")


@pytest.mark.parametrize(
    "payload",
    [b"{}", b"{\0", b"[]\0", b"7\0", b"\xff\0", b'{"a": 123456789012345678901234567890}\0', b'{"a":' * 3000 + b"\0"],
)
async def test_a_payload_that_is_no_json_object_is_the_senders_fault(four, payload):
    errnum, text = await four.ask("attr.get", payload)
    assert (errnum, text.partition(":")[0]) == (errno.EPROTO, "payload")


async def test_a_guest_may_look_and_nothing_more(four):
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


async def test_others_come_in_only_where_the_configuration_says_so(world):
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
async def test_another_user_is_who_the_kernel_says(world, allowed):
    world.directory.chmod(0o711)
    config = f"[[resource.config]]\nhosts = 'a'\ncores = '0'\n[access]\nallow-guest-user = {allowed}\n"
    await world.bare(config=config, bind=(f"local://{world.directory}/open",))
    (world.directory / "open").chmod(0o666)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PRETENDER, world.directory / "open"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    verdict, *said = done.stdout.splitlines()
    if allowed == "false":
        assert (int(verdict), said) == (errno.EPERM, [])
        return
    pinged, refused, cut_off = said
    assert (json.loads(pinged)["userid"], json.loads(pinged)["rolemask"]) == (65534, GUEST)
    assert (refused, cut_off) == ("Request requires owner credentials", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_a_user_is_an_admin_where_the_configuration_says_so(world):
    world.directory.chmod(0o711)
    config = "[[resource.config]]\nhosts = 'a'\ncores = '0'\n[access]\nadmin-users = ['65534']\n"
    await world.bare(config=config, bind=(f"local://{world.directory}/open",))
    assert (world.directory / "open").stat().st_mode & 0o777 == 0o666
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PRETENDER, world.directory / "open"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    verdict, pinged, drained, cut_off = done.stdout.splitlines()
    assert (verdict, cut_off) == ("0", "")
    assert (json.loads(pinged)["userid"], json.loads(pinged)["rolemask"]) == (65534, GUEST | 8)
    assert "missing required field `targets`" in drained, "it may drain"


async def test_the_answer_to_a_large_request_comes_back_whole(four):
    pad = "p" * (8 << 20)
    assert (await four.ok("resource.ping", {"pad": pad}))["pad"] == pad


# What guests and admins get of each topic; who asks is what a local owner claims to be (RFC 12).


GUEST, ADMIN, OWNER_AS_OTHER, KEEPER = 6, 14, 21, 36
ANN, BOB = os.getuid() + 1, os.getuid() + 2
SILENT = {"instance.goodbye", "instance.renounce", "agent.heartbeat"}
PRIVATE = "[[resource.config]]\nhosts = 'a'\ncores = '0-3'\n[access]\nprivate-jobs = true\n"


def become(flux, userid, rolemask):
    flux.userid, flux.rolemask = userid, rolemask


JOBSPEC = {
    "version": 1, "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "resources": [{"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 1}]}],
    "attributes": {"system": {"duration": 1}},
}  # fmt: skip


async def submitted(flux, userid):
    """A job of this user that waits, submitted by the owner on its behalf."""
    become(flux, userid, OWNER_AS_OTHER)
    return int((await flux.ok("job-manager.submit", {"jobspec": JOBSPEC}))["id"])


@pytest.fixture
async def site(world, flux):
    async with type(flux)(await world.bare(fake="1x4")) as client:
        yield client


def denied(topic, role):
    least, scope, is_keepers = RIGHTS[topic].least, RIGHTS[topic].scope, RIGHTS[topic].is_keepers
    if role is Role.KEEPER:
        assert is_keepers == topic.startswith("keeper."), topic
        return not is_keepers
    return role < least or (role is Role.GUEST and scope is Scope.OWN)


ROLES = {Role.KEEPER: KEEPER, Role.GUEST: GUEST, Role.ADMIN: ADMIN}


@pytest.mark.parametrize(("role", "rolemask"), ROLES.items(), ids=map(str, ROLES))
async def test_each_topic_is_refused_to_those_below_its_role_and_to_no_others(site, role, rolemask):
    become(site, ANN, rolemask)
    for topic in RIGHTS:
        if topic in SILENT or (topic.endswith("-cancel") and not denied(topic, role)):
            continue  # these are not answered
        errnum, said = await site.ask(topic, {}) if topic not in WAITS or denied(topic, role) else (0, None)
        assert (errnum == errno.EPERM) == denied(topic, role), (topic, errnum, said)
    assert not site.instance.ended.done()


async def test_who_gives_up_its_rights_is_a_guest_without_jobs(site):
    """For good, and whoever it claims to be; all answers are to a guest."""
    theirs = await submitted(site, ANN)
    become(site, os.getuid(), 5)
    await site.ok("instance.renounce")
    for userid, rolemask in ((os.getuid(), OWNER_AS_OTHER), (ANN, ADMIN), (ANN, GUEST)):
        become(site, userid, rolemask)
        tags = [site.open(topic, {"id": theirs}, flags=0x0B) for topic in ("instance.info", "job-manager.cancel")]
        become(site, NO_USER, GUEST)
        found, (errnum, _) = (await site.next(tags[0]))[1], await site.next(tags[1])
        assert (found["role"], found["userid"], errnum) == ("guest", NO_USER, errno.EPERM)
    assert theirs in {job["id"] for job in (await site.ok("job-manager.list"))["jobs"]}
    for topic in RIGHTS:
        if topic in SILENT | WAITS or (topic.endswith("-cancel") and not denied(topic, Role.GUEST)):
            continue
        errnum, said = await site.ask(topic, {})
        assert (errnum == errno.EPERM) == denied(topic, Role.GUEST), (topic, errnum, said)
    assert not site.instance.ended.done()


WAITS = {"job-manager.drain", "job-manager.idle", "resource.monitor-waitup", "state-machine.wait"}
"""Answered later, perhaps."""


async def test_a_guests_submission_says_whom_jobs_run_as(site):
    become(site, ANN, GUEST)
    for topic in ("job-manager.submit", "job-manager.when", "job-ingest.submit"):
        errnum, text = await site.ask(topic, {"jobspec": {}, "J": "{}"})
        assert errnum == errno.EPERM
        assert "the user of the instance, with all access of that user: only the owner may submit them" in text
        assert "your role is guest" in text


OWN = {
    "job-manager.cancel": {"note": ""}, "job-manager.raise": {"type": "x", "severity": 7},
    "job-manager.kill": {"signum": 15}, "job-manager.urgency": {"urgency": 3}, "job-manager.update": {"updates": {}},
    "job-manager.lookup": {"keys": ["jobspec"]}, "job-info.lookup": {"keys": ["jobspec"]}, "job-manager.wait": {},
}  # fmt: skip


async def test_guests_reach_jobs_of_their_own_and_learn_nothing_of_others(site):
    mine, other = await submitted(site, ANN), await submitted(site, BOB)
    become(site, ANN, GUEST)
    unknown = mine + 1
    for topic, more in OWN.items():
        texts = set()
        for jobid in (other, unknown):
            errnum, text = await site.ask(topic, {"id": jobid, **more})
            assert errnum == errno.EPERM, topic
            texts.add(text.replace(format_f58(jobid), "ID"))
        assert texts == {"job ID is not one of yours"}, "whether it exists is not told"
    for topic, named in (("job-manager.watch", {"ids": [mine, other]}), ("job-manager.wait-all", {"ids": [other]}),
                         ("job-manager.watch", {}), ("job-manager.watch", {"ids": []}),
                         ("job-manager.eventlog", {"id": other}), ("job-manager.output", {"id": other}),
                         ("job-info.eventlog-watch", {"id": other, "path": "eventlog"})):  # fmt: skip
        errnum, _ = await site.next(site.open(topic, named))
        assert errnum == errno.EPERM, topic
    for wrong in ("7", -1, True, [mine], 1.0, None):
        for named in ({"id": wrong}, {"ids": [wrong]}):
            assert (await site.next(site.open("job-manager.watch", named)))[0] in (errno.EINVAL, errno.EPERM), named
    assert (await site.ok("job-manager.lookup", {"id": mine, "keys": ["jobspec"]}))["jobspec"]
    assert await site.ok("job-info.lookup", {"id": mine, "keys": ["jobspec"], "flags": 0})
    await site.ok("job-manager.urgency", {"id": mine, "urgency": 3})
    errnum, text = await site.ask("job-manager.urgency", {"id": mine, "urgency": 17})
    assert (errnum, "a guest may set an urgency of 16 at most" in text) == (errno.EPERM, True)
    await site.ok("job-manager.cancel", {"id": mine, "note": ""})
    become(site, BOB, ADMIN)
    await site.ok("job-manager.cancel", {"id": other, "note": "by an admin"})


async def test_guests_shorten_their_running_jobs_and_do_not_prolong_them(world, flux):
    async with type(flux)(await world.instance(fake="1x4")) as site:
        system = {"duration": 600, "exec": {"test": {"run_duration": "600s"}}}
        become(site, ANN, OWNER_AS_OTHER)
        mine = (await site.ok("job-manager.submit", {"jobspec": {**JOBSPEC, "attributes": {"system": system}}}))["id"]
        while not (await site.ok("job-manager.running"))["jobs"]:
            pass
        become(site, ANN, GUEST)
        for longer in (601, 999_999, 0):
            errnum, text = await site.ask("job-manager.update", change(mine, longer))
            assert (errnum, "at most 10m, which it has" in text) == (errno.EPERM, True), (longer, text)
        await site.ok("job-manager.update", change(mine, 300))
        assert (await site.ask("job-manager.update", change(mine, 600)))[0] == errno.EPERM, "back to what it had"
        become(site, BOB, ADMIN)
        await site.ok("job-manager.update", change(mine, 900))
        become(site, os.getuid(), 5)
        await site.ok("job-manager.update", change(mine, 0))


def change(jobid, duration_s):
    return {"id": jobid, "updates": {"attributes.system.duration": duration_s}}


async def listed(flux):
    found = [{job["id"] for job in (await flux.ok("job-manager.list"))["jobs"]}]
    picked = [answer async for answer in flux.rest(flux.open("job-manager.select", {}))]
    found.append({jobid for answer in picked for jobid in answer["ids"]})
    answers = await flux.all("job-list.list", {"max_entries": 0, "attrs": ["userid"]})
    return [*found, {job["id"] for answer in answers for job in answer["jobs"]}]


@pytest.mark.parametrize("is_private", [False, True], ids=["public", "private"])
async def test_in_private_mode_guests_see_their_own_jobs_only(world, flux, is_private):
    options = {"config": PRIVATE} if is_private else {"fake": "1x4"}
    async with type(flux)(await world.bare(**options)) as site:
        mine, other = await submitted(site, ANN), await submitted(site, BOB)
        become(site, ANN, GUEST)
        seen = {mine} if is_private else {mine, other}
        assert await listed(site) == [seen] * 3
        assert (await site.ok("job-manager.list", {"user": BOB}))["jobs"] == [] or not is_private
        for topic, more in (("job-manager.why", {}), ("job-list.list-id", {"attrs": ["state"]})):
            await site.ok(topic, {"id": mine, **more})
            errnum, _ = await site.ask(topic, {"id": other, **more})
            assert errnum == (errno.EPERM if is_private else 0), topic
        counts = {topic for topic, right in RIGHTS.items() if right.counts_jobs}
        for topic in counts - {"sched.accounts", "sched.plan"}:
            errnum, _ = await site.ask(topic)
            assert errnum == (errno.EPERM if is_private else 0), topic
        become(site, BOB, ADMIN)
        assert await listed(site) == [{mine, other}] * 3
        become(site, os.getuid(), 5)
        assert await listed(site) == [{mine, other}] * 3


@pytest.mark.parametrize("is_private", [False, True], ids=["public", "private"])
async def test_in_private_mode_guests_see_what_runs_of_their_own(world, flux, is_private):
    config = "[access]\nprivate-jobs = true\n" if is_private else "[access]\n"
    async with type(flux)(await world.instance(fake="1x4", config=config)) as site:
        spec = {**JOBSPEC, "attributes": {"system": {"duration": 60, "exec": {"test": {"run_duration": "60s"}}}}}
        ids = []
        for user in (ANN, BOB):
            become(site, user, OWNER_AS_OTHER)
            ids.append((await site.ok("job-manager.submit", {"jobspec": spec}))["id"])
        while len((await site.ok("job-manager.running"))["jobs"]) < 2:
            pass
        become(site, ANN, GUEST)
        found = await site.ok("job-manager.running")
        assert {entry[0] for entry in found["jobs"]} == ({ids[0]} if is_private else set(ids))
        assert found["left_out"] == 0, "how many others there are is not told either"
        errnum, _ = await site.ask("sched.plan")
        assert errnum == (errno.EPERM if is_private else 0)


def test_the_topics_of_both_dialects_are_tried():
    assert LOCAL_TOPICS.keys() <= RIGHTS.keys()


# A handler that fails over a payload, or by a bug of ours: its sender is told, and the instance lives on.


STREAMING = 0x40
Flux, World = Any, Any


@pytest.fixture
def log():
    """What the instance says of faults, with their stories."""
    records = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("fluxsched").addHandler(handler)
    yield lambda: [f"{one.getMessage()} {one.exc_info and one.exc_info[1]!r}" for one in records]
    logging.getLogger("fluxsched").removeHandler(handler)


async def test_a_path_that_holds_nul_is_the_senders_fault(world, bare):
    for path in ("/etc/x\0y", "\0"):
        errnum, text = await bare.ask("resource.reload", {"path": path})
        assert errnum == errno.EINVAL
        assert "cannot be read: embedded null byte" in text
        assert await world.second(bare.instance).refused("resource.reload", {"path": path}) == (errnum, text)
    assert bare.instance.faults.count == 0


async def test_base64_that_is_not_ascii_is_the_senders_fault(bare):
    topic = f"shell-{await bare.submit('true')}.stdin"
    errnum, text = await bare.ask(topic, {"stream": "stdin", "rank": "all", "data": "\u20ac", "encoding": "base64"})
    assert (errnum, text.partition(":")[0]) == (errno.EINVAL, "data is not base64")
    assert bare.instance.faults.count == 0


def failing(exc):
    def handler(request):
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


async def test_a_bug_in_a_handler_ends_the_call_at_both_endpoints(world, bare, log):
    site, peer = bare.instance, world.second(bare.instance)
    for bug, errnum, said in BUGS:
        site.router.serve({"test.bug": failing(bug)})
        for found in (await bare.ask("test.bug"), await peer.refused("test.bug")):
            assert found[0] == errnum
            assert said in found[1]
        assert all("test.bug" in line and repr(bug) in line for line in log()[-2:])
    assert (await peer.ok("instance.stats-get"))["faults"] == site.faults.count == 2 * len(BUGS)


async def test_a_stream_that_a_bug_ends_is_ended_on_our_side_too(bare):
    ended = []

    def handler(request):
        request.open_stream(lambda: ended.append(request.topic))
        raise KeyError("late")

    bare.instance.router.serve({"test.bug": handler})
    assert (await bare.next(bare.open("test.bug", {})))[0] == errno.EIO
    assert ended == ["test.bug"]


async def test_a_bug_behind_a_commit_costs_no_other_client_its_answer(world, bare):
    site, peer = bare.instance, world.second(bare.instance)

    def handler(request):
        site.effects.after_commit(failing(KeyError("x")).__get__(request))
        site.effects.after_commit(request.respond)

    site.router.serve({"test.bug": handler})
    await peer.ok("test.bug")
    await peer.ok("resource.drain", {"targets": "0"})
    assert site.faults.count == 1


async def test_a_bug_in_long_work_is_the_answer_to_who_waits_for_it(world, bare):
    site, peer = bare.instance, world.second(bare.instance)

    def work():
        yield
        raise KeyError("half way")

    site.router.serve({"test.bug": lambda request: site.turns.spread(work(), request.failed)})
    assert (await peer.refused("test.bug"))[0] == errno.EIO
    assert site.faults.count == 1


async def test_a_bug_in_a_timer_or_a_posted_call_ends_no_other(bare):
    turns, seen = bare.instance.turns, []
    for call in (lambda: 1 // 0, lambda: seen.append("t")):
        turns.after(0.0, call)
        turns.post(call)
    while len(seen) < 2:
        await bare.ok("attr.get", {"name": "size"})
    assert bare.instance.faults.count == 2


async def test_a_bug_over_the_loss_of_a_peer_ends_no_other_callback(world, bare, eventually):
    site, seen = bare.instance, []
    site.router.on_lost(lambda peer: {}[peer])
    site.router.on_lost(seen.append)
    peer = world.second(site)
    await peer.settle()
    peer.close()
    await eventually(lambda: seen)
    assert site.faults.count == 1


async def test_a_job_whose_start_hits_a_bug_fails_alone(flux, monkeypatch):
    def start(launch):
        raise KeyError("no such thing")

    monkeypatch.setattr(flux.instance.effects.executors["local"], "start", start)
    jobid = await flux.submit("true")
    events = await flux.events(jobid)
    assert "KeyError" in str([one for one in events if one["name"] == "exception"])
    assert flux.instance.faults.count == 1
