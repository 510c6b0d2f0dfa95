"""Drain and undrain over real sockets: every mode, every error text, and what status and acquirers show of it."""

from __future__ import annotations

import errno
import getpass

import pytest

HOSTS = """
[resource]
exclude = "host7"
[[resource.config]]
hosts = "host[0-7]"
cores = "0-1"
"""


@pytest.fixture
async def site(world):
    return await world.bare(config=HOSTS)


@pytest.fixture
def admin(world, site):
    return world.second(site)


async def lines(admin):
    drain = (await admin.ok("resource.status"))["drain"]
    return {targets: line["reason"] for targets, line in drain.items()}


async def times(admin):
    drain = (await admin.ok("resource.status"))["drain"]
    return {targets: line["timestamp"] for targets, line in drain.items()}


async def test_who_when_and_why(admin, site):
    before_s = site.settings.clock.wall_s()
    await admin.ok("resource.drain", {"targets": "host[0,2]", "reason": "bad DIMM"})
    after_s = site.settings.clock.wall_s()
    (line,) = (await admin.ok("resource.status"))["drain"].values()
    assert before_s <= line.pop("timestamp") <= after_s
    assert line == {"reason": "bad DIMM", "user": getpass.getuser(), "state": "drained"}
    assert await lines(admin) == {"0,2": "bad DIMM"}


async def test_no_reason_is_an_empty_text(admin):
    """Stock clients insist on a string."""
    await admin.ok("resource.drain", {"targets": "0"})
    assert await lines(admin) == {"0": ""}


async def test_modes(admin):
    await admin.ok("resource.drain", {"targets": "0", "reason": "one"})
    first = (await times(admin))["0"]
    found, text = await admin.refused("resource.drain", {"targets": "0-1", "reason": "two"})
    assert (found, "0" in text, "host0" in text, "already drained" in text) == (errno.EEXIST, True, True, True)
    assert await lines(admin) == {"0": "one"}
    await admin.ok("resource.drain", {"targets": "0-1", "reason": "two", "mode": "update"})
    assert await lines(admin) == {"0": "one", "1": "two"}
    await admin.ok("resource.drain", {"targets": "0", "reason": "three", "mode": "overwrite"})
    assert await lines(admin) == {"0": "three", "1": "two"}
    assert (await times(admin))["0"] == first
    await admin.ok("resource.drain", {"targets": "0", "reason": "four", "mode": "force-overwrite"})
    assert await lines(admin) == {"0": "four", "1": "two"}
    assert (await times(admin))["0"] > first
    found, text = await admin.refused("resource.drain", {"targets": "2", "mode": "maybe"})
    assert (found, "update, overwrite, force-overwrite" in text) == (errno.EINVAL, True)


@pytest.mark.parametrize(
    ("targets", "errnum", "words"),
    [
        ("0-3,9,12", errno.EINVAL, ("9,12", "not exist|unknown")),
        ("host[1,10-11]", errno.EINVAL, ("host[10-11]",)),
        ("3,7", errno.EINVAL, ("7", "host7", "excluded")),
        ("7,9", errno.EINVAL, ("9",)),
        ("0-1,5", errno.EEXIST, ("0-1", "host[0-1]", "already drained")),
        ("1,7", errno.EEXIST, ("1", "7", "excluded", "already drained")),
        ("", errno.EINVAL, ("empty",)),
        ("3,1", errno.EINVAL, ("3,1",)),
        ("1,,2", errno.EINVAL, ("1,,2",)),
        ("0-4000000000", errno.EINVAL, ("4000000000",)),
        ("host[0-99999999]", errno.EINVAL, ("100000000", "limit")),
        ("x" * 5000, errno.EINVAL, ()),
    ],
)
async def test_all_offenders_are_named_and_nothing_is_done_by_halves(admin, targets, errnum, words):
    await admin.ok("resource.drain", {"targets": "0-1", "reason": "first"})
    found, text = await admin.refused("resource.drain", {"targets": targets, "reason": "late"})
    assert found == errnum, text
    assert all(any(one in text for one in word.split("|")) for word in words), text
    assert len(text) < 600
    assert await lines(admin) == {"0-1": "first"}


async def test_undrain_names_all_that_are_not_drained(admin):
    await admin.ok("resource.drain", {"targets": "0,2"})
    found, text = await admin.refused("resource.undrain", {"targets": "0-3"})
    assert (found, "1,3" in text, "host[1,3]" in text) == (errno.EEXIST, True, True)
    assert await lines(admin) == {"0,2": ""}
    await admin.ok("resource.undrain", {"targets": "0-1", "mode": "update"})
    assert await lines(admin) == {"2": ""}
    found, text = await admin.refused("resource.undrain", {"targets": "2,9"})
    assert (found, "9" in text) == (errno.EINVAL, True)
    await admin.ok("resource.undrain", {"targets": "host2", "reason": "mended"})
    assert await lines(admin) == {}


async def test_draining_until_no_job_holds_it(world, timed, eventually):
    site = await world.instance()
    admin = world.second(site)
    jobid = (await admin.ok("job-manager.submit", {"jobspec": timed("60s").to_json()}))["id"]
    await eventually(lambda: site.resource.module.held)
    held = str(site.resource.module.held)
    await admin.ok("resource.drain", {"targets": "0-3"})
    status = await admin.ok("resource.status")
    assert {line["state"]: targets for targets, line in status["drain"].items()}["draining"] == held
    shares = await admin.ok("resource.sched-status")
    assert [r["rank"] for r in shares["allocated"]["execution"]["R_lite"]] == [held]
    assert shares["allocated"]["execution"]["R_lite"][0]["children"] == {"core": "0"}
    assert [r["rank"] for r in shares["down"]["execution"]["R_lite"]] == ["0-3"]
    waiting = (await admin.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    await admin.ok("job-manager.cancel", {"id": jobid})
    await eventually(lambda: not site.resource.module.held)
    status = await admin.ok("resource.status")
    assert {line["state"]: targets for targets, line in status["drain"].items()} == {"drained": "0-3"}
    await admin.ok("resource.undrain", {"targets": "1"})
    assert (await admin.ok("job-manager.wait", {"id": waiting}))["success"]
    found = await admin.ok("job-manager.lookup", {"id": waiting, "keys": ["R"]})
    assert found["R"]["execution"]["R_lite"] == [{"rank": "1", "children": {"core": "0"}}]


async def test_status_of_everything_at_once(world, admin, site):
    agent = world.second(site)
    await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0})
    await admin.ok("resource.drain", {"targets": "2"})
    await admin.ok("resource.assign", {"targets": "4-5", "group": "b"})
    status = await admin.ok("resource.status")
    assert status["R"]["execution"]["nodelist"] == ["host[0-7]"]
    found = {name: status[name] for name in ("online", "offline", "exclude", "torpid", "groups")}
    assert found == {
        "online": "1",
        "offline": "0,2-7",
        "exclude": "7",
        "torpid": "",
        "groups": {"default": "0-3,6", "b": "4-5", "exclude": "7"},
    }
    shares = await admin.ok("resource.sched-status")
    made_up = shares.pop("made_up", "")
    assert made_up == "0-6"
    ranks = {name: [r["rank"] for r in share["execution"]["R_lite"]] for name, share in shares.items()}
    assert ranks == {"all": ["0-6"], "down": ["0,2-6"], "allocated": []}
    assert shares["allocated"]["execution"]["nodelist"] == [""]


async def test_drain_of_what_is_offline_says_nothing_to_an_acquirer(world, admin, site):
    stream = admin.open("resource.acquire", {"group": "default"})
    assert (await admin.next(stream)).payload["offline"] == "0-6"
    await admin.ok("resource.drain", {"targets": "1"})
    agent = world.second(site)
    await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0})
    await admin.settle()
    assert admin.waiting(stream) == []
    await admin.ok("resource.undrain", {"targets": "1"})
    assert (await admin.next(stream)).payload == {"type": "online", "targets": "1"}


async def test_the_answer_comes_after_the_store(admin, site):
    """Whoever reads the disk at the moment of the answer finds the drain (law 3)."""
    await admin.ok("resource.drain", {"targets": "host3", "reason": "durable"})
    rows = site.store.read("SELECT key, value FROM saved WHERE kind = 'drain'")
    assert [(key, b"durable" in value) for key, value in rows] == [("host3", True)]
    await admin.ok("resource.undrain", {"targets": "3"})
    assert site.store.read("SELECT key FROM saved WHERE kind = 'drain'") == []
