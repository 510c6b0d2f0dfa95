"""The history of accounts in the KVS: saved while it changes and at the end, restored at load, set aside if useless."""

from __future__ import annotations

import errno
import json

import pytest

from fluxsched.flux.handle import KEY, SET_ASIDE, BrokerReply
from fluxsched.scheduler.session import SAVE_EVERY_S

FAIR = ["policy=fair", "half-life=600"]
JOBID = 7
PREFIX = "job.0000.0000.0000.0007"
R = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-1"}}],
        "starttime": 1000.0,
        "expiration": 0.0,
        "nodelist": ["n[0-1]"],
    },
}


def spec(**system):
    resources = [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}]
    task = {"command": ["true"], "slot": "task", "count": {"per_slot": 1}}
    return {"version": 1, "resources": resources, "tasks": [task], "attributes": {"system": {"duration": 0, **system}}}


def begin(hand, saved=None, error=0, running=None, **options):
    """A bridge that keeps accounts, ready, with this in the KVS."""
    hand.acquire(*FAIR, **options)
    if running is not None:
        hand.answer("job-manager.sched-hello", {"id": JOBID, "priority": 16, "userid": 1, "t_submit": 1.0})
        hand.answer(f"{PREFIX}.R", R)
        running()
    hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    hand.answer("job-manager.sched-ready", {"count": 0})
    payload = None if saved is None else saved if isinstance(saved, bytes) else json.dumps(saved).encode()
    hand.calls[KEY](BrokerReply(payload, error or (errno.ENOENT if saved is None else 0), "no such key"))
    hand.turn()
    return hand.bridge


def state(**changes):
    accounts = [[[], 8.0, 8.0], [["default"], 8.0, 8.0], [["default", "1"], 8.0, 8.0]]
    known = {"version": 1, "saved": 1000.0, "signal": "decayed-usage", "half-life": 600.0, "accounts": accounts}
    return known | changes


def used(hand):
    """A job that holds two cores from now on, in the KVS."""
    hand.alloc(JOBID, 2)
    hand.turn()
    hand.commits.pop()[1](BrokerReply())


def levels(bridge, now_s):
    return bridge.scheduler.account_tree.levels(now_s)


def test_accounts_are_told_as_they_are_now(hand):
    begin(hand)
    used(hand)
    hand.now_s += 600.0
    hand.ask("sched.accounts", token="asked")
    ((_, answer),) = [said for said in hand.take("respond") if said[0] == "asked"]
    assert [(each["path"][0], each["user"], each["usage"], each["running"]) for each in answer["accounts"]] == [
        ("default", False, 2.0, 1), ("default", True, 2.0, 1)
    ]  # fmt: skip
    assert answer["accounts"][0]["signal"] == pytest.approx(1.0)


def test_a_policy_without_accounts_says_so(hand):
    hand.begin("policy=easy")
    hand.ask("sched.accounts", {"group": "any"}, token="asked")
    ((token, errnum, text),) = hand.take("fail")
    assert (token, errnum) == ("asked", errno.EOPNOTSUPP)
    assert "keeps no accounts: use a policy that does, such as fair:backfill=easy" in text


def test_what_changed_is_saved_every_so_often_under_the_key(hand):
    begin(hand)
    assert hand.commits == []
    used(hand)
    assert hand.delays[-1] == pytest.approx(SAVE_EVERY_S)
    hand.now_s += SAVE_EVERY_S
    hand.turn()
    ((values, done),) = hand.commits
    assert list(values) == [KEY]
    assert values[KEY]["saved"] == hand.now_s
    assert values[KEY]["accounts"][0][1] > 0
    hand.now_s += SAVE_EVERY_S
    hand.turn()
    assert len(hand.commits) == 1, "not before the last one is stored"
    done(BrokerReply())
    hand.now_s += SAVE_EVERY_S
    hand.turn()
    assert len(hand.commits) == 2


def test_what_was_saved_goes_on_after_a_reload(hand):
    hand.now_s = 1600.0
    bridge = begin(hand, state())
    assert levels(bridge, 1600.0)["default", "1"] == (4.0, 4.0)
    assert not [line for line in hand.take("log") if "history" in line[1]]


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        (b"\xff{", "damaged"),
        (b"", "damaged"),
        (state(version=2), "of version 2"),
        (state(saved=1e9), "from the future"),
        (state(signal="flow"), "of signal 'flow'"),
        (state(**{"half-life": 5.0}), "of half-life 5 s"),
    ],
)  # fmt: skip
def test_what_is_of_no_use_is_said_and_set_aside(hand, saved, what):
    begin(hand, saved)
    (text,) = [text for _, text in hand.take("log") if "history" in text]
    assert text.startswith(f"the saved history of accounts is {what}")
    ((values, done),) = hand.raw_commits
    assert values[SET_ASIDE] == (saved if isinstance(saved, bytes) else json.dumps(saved).encode())
    assert json.loads(values[KEY])["accounts"] == []
    done(BrokerReply())
    used(hand)
    hand.now_s += SAVE_EVERY_S
    hand.turn()
    assert list(hand.raw_commits[-1][0]) == [KEY]


def test_a_kvs_that_cannot_be_read_or_written_is_named_and_ends_nothing(hand):
    begin(hand, error=errno.EIO)
    used(hand)
    hand.now_s += SAVE_EVERY_S
    hand.turn()
    hand.commits.pop()[1](BrokerReply(None, errno.ENOSPC, "No space left"))
    assert [text.split(":")[0] for _, text in hand.take("log") if "history" in text] == [
        "the history of accounts begins anew", "the history of accounts is not saved",
    ]  # fmt: skip
    assert not hand.stopped


def test_the_last_state_is_saved_when_the_module_is_unloaded(hand):
    bridge = begin(hand)
    used(hand)
    hand.now_s += 1.0
    bridge.leave()
    ((values, done),) = hand.commits
    assert values[KEY]["saved"] == hand.now_s
    done(BrokerReply())
    assert not bridge.session.may_decide


def test_running_jobs_count_in_the_bank_of_their_jobspec_and_its_updates(hand):
    def running():
        update = {"timestamp": 1.0, "name": "jobspec-update", "context": {"attributes.system.bank": "physics"}}
        hand.answer(f"{PREFIX}.jobspec", spec(bank="other", **{"preemptible-after": 0}))
        hand.calls[f"{PREFIX}.eventlog"](BrokerReply(json.dumps(update).encode() + b"\n"))

    tree = begin(hand, running=running).scheduler.account_tree
    (bank,) = tree.root.children.values()
    assert bank.name == "physics"
    assert (bank.all_jobs.usage, bank.firm.usage) == (4.0, 0.0)


def test_a_running_job_that_was_preempted_before_is_going(hand):
    def running():
        raised = {"timestamp": 999.0, "name": "exception", "context": {"type": "preempt", "severity": 0, "note": ""}}
        hand.answer(f"{PREFIX}.jobspec", spec(**{"preemptible-after": 0}))
        hand.calls[f"{PREFIX}.eventlog"](BrokerReply(json.dumps(raised).encode() + b"\n"))

    scheduler = begin(hand, running=running).scheduler
    assert list(scheduler._preemptions.going) == [JOBID]
    assert scheduler._preemptions.left(1000.0) == scheduler._preemptions.rate - 1, "it counts in the rate"


@pytest.mark.parametrize("broken", ["jobspec", "eventlog"])
def test_a_running_job_whose_jobspec_cannot_be_read_counts_as_firm_in_the_default_bank(hand, broken):
    def running():
        for key in ("jobspec", "eventlog"):
            errnum = errno.EIO if key == broken else 0
            hand.calls[f"{PREFIX}.{key}"](BrokerReply(json.dumps(spec(bank="other")).encode(), errnum, "damaged"))

    tree = begin(hand, running=running).scheduler.account_tree
    (bank,) = tree.root.children.values()
    assert bank.name == "default"
    assert (bank.all_jobs.usage, bank.firm.usage) == (4.0, 4.0)
    assert "counts as if it had no jobspec: damaged" in "".join(text for _, text in hand.take("log"))
