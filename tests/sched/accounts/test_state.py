"""The history of accounts as a text: it comes back as it was; what is wrong with one is said and changes nothing."""

import json

import pytest

from fluxsched.sched.fair import account_state
from fluxsched.sched.fair.account_state import CLOCK_STEP_MAX_S, NOTHING, STATE_BYTES_MAX, VERSION
from fluxsched.sched.fair.accounts import ACCOUNTS_MAX, DEPTH_MAX, Signal
from tests.sched.accounts.conftest import BOTH, cores

ANN = ("physics", "ann")


def levels(accounts, *path, now_s):
    return accounts.levels(now_s).get(path, (0.0, 0.0))


def used(signal=Signal.DECAYED_USAGE, half_life_s=600.0):
    """ann used 100 cores for one half-life, until 600 s."""
    accounts = cores(1000, signal, half_life_s)
    ann = accounts.account(ANN)
    accounts.book(ann, (100,), 1, True, 0.0)
    accounts.book(ann, (100,), -1, True, 600.0)
    return accounts


@BOTH
def test_what_was_saved_goes_on_where_it_would_be_by_now(signal):
    before, after = used(signal), cores(1000, signal)
    text = account_state.saved(before, 700.0)
    after.book(after.account(ANN), (10,), 1, True, 1200.0)  # a job that hello names
    before.book(before.account(ANN), (10,), 1, True, 700.0)
    assert account_state.restore(after, text, 1200.0) is None
    for path in ((), ("physics",), ANN):
        assert levels(after, *path, now_s=1200.0) == pytest.approx(levels(before, *path, now_s=1200.0))
    assert levels(after, *ANN, now_s=1800.0) == pytest.approx(levels(before, *ANN, now_s=1800.0))


def test_usage_comes_from_the_running_jobs_and_not_from_the_text():
    after = cores(1000, Signal.DECAYED_USAGE)
    assert account_state.restore(after, account_state.saved(used(), 600.0), 600.0) is None
    assert after.account(ANN).all_jobs.usage == 0.0
    assert levels(after, *ANN, now_s=600.0) == (50.0, 100.0)


def test_the_text_is_one_versioned_json_value():
    assert json.loads(account_state.saved(used(), 600.0)) == {
        "version": VERSION,
        "saved": 600.0,
        "signal": "decayed-usage",
        "half-life": 600.0,
        "accounts": [[[], 50.0, 0.0], [["physics"], 50.0, 100.0], [["physics", "ann"], 50.0, 100.0]],
    }


def test_what_has_fallen_to_nothing_is_forgotten():
    accounts = used()
    assert levels(accounts, *ANN, now_s=600.0 * 30)[0] > NOTHING
    assert len(json.loads(account_state.saved(accounts, 600.0 * 30))["accounts"]) == 3
    assert 0.0 < levels(accounts, *ANN, now_s=600.0 * 45)[0] < NOTHING
    assert json.loads(account_state.saved(accounts, 600.0 * 45))["accounts"] == []


def changed(**parts):
    return json.dumps(json.loads(account_state.saved(used(), 600.0)) | parts)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ("", "damaged: Input data was truncated"),
        ("{", "damaged: "),
        ("\0\x1b[2J", "damaged: "),
        ("\ud800", "damaged: "),
        ("[" * 100_000, "damaged: "),
        ({"version": VERSION}, "damaged: an object is not a text"),
        (changed(version="1"), "damaged: Expected `int`, got `str` - at `$.version`"),
        (changed(version=VERSION + 1), f"of version 2, where this fluxsched reads {VERSION}"),
        (json.dumps({"version": VERSION}), "damaged: Object missing required field"),
        (changed(saved=-1.0), "damaged: "),
        (changed(saved=600.0 + CLOCK_STEP_MAX_S + 1.0), "from the future: saved 61 s after now"),
        (changed(signal="flow"), "of signal 'flow', which is 'decayed-usage' by now"),
        (changed(**{"half-life": 601.0}), "of half-life 601 s, which is 600 s by now"),
        (changed(accounts=[[["a"], -1.0, 0.0]]), "damaged: Expected `float` >= 0.0 - at `$.accounts[0][1]`"),
        (changed(accounts=[[["a"], "x", 0.0]]), "damaged: Expected `float`, got `str` - at `$.accounts[0][1]`"),
        (changed(accounts=[[["a"] * (DEPTH_MAX + 1), 1.0, 0.0]]), "damaged: Expected `array` of length <= 8"),
        (changed(accounts=[[[""], 1.0, 0.0]]), "damaged: accounts[0]: '' is not a name"),
        (changed(accounts=[[["a\nb"], 1.0, 0.0]]), "damaged: accounts[0]: 'a\\nb' is not a name"),
        (changed(accounts=[[["\x1b[2J"], 1.0, 0.0]]), "damaged: accounts[0]: '\\x1b[2J' is not a name"),
        (changed(saved=600.0).replace("50.0", "1e999"), "damaged: "),
        (changed(saved=600.0).replace("50.0", "NaN"), "damaged: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line_and_changes_nothing(saved, said):
    accounts = cores(1000, Signal.DECAYED_USAGE)
    what = account_state.restore(accounts, saved, 600.0)
    assert what is not None
    assert what.startswith(said)
    assert what.isprintable()
    assert len(what) < 300
    assert list(accounts.root.walk()) == [accounts.root]


def test_a_clock_that_was_set_back_a_little_forgets_nothing():
    after = cores(1000, Signal.DECAYED_USAGE)
    assert account_state.restore(after, account_state.saved(used(), 660.0), 601.0) is None
    assert levels(after, *ANN, now_s=601.0) == pytest.approx(levels(used(), *ANN, now_s=660.0))


def test_where_not_all_accounts_find_a_place_none_is_made():
    saved = changed(accounts=[[[str(number)], 1.0, 1.0] for number in range(ACCOUNTS_MAX)])
    accounts = cores(1000, Signal.DECAYED_USAGE)
    accounts.account(("one", "more"))
    what = account_state.restore(accounts, saved, 600.0)
    assert what == f"too large: with it there would be {ACCOUNTS_MAX + 2} accounts, the limit is {ACCOUNTS_MAX}"
    assert list(accounts.root.children) == ["one"]


def test_more_accounts_than_there_can_be_are_not_even_made():
    saved = changed(accounts=[[[str(number)], 1.0, 1.0] for number in range(ACCOUNTS_MAX + 2)])
    accounts = cores(1000, Signal.DECAYED_USAGE)
    what = account_state.restore(accounts, saved, 600.0)
    assert what == f"too large: {ACCOUNTS_MAX + 2} accounts, the limit is {ACCOUNTS_MAX}"
    assert not accounts.root.children


def test_beyond_its_limit_the_accounts_nearest_nothing_are_left_out(lower):
    accounts = cores(1000, Signal.DECAYED_USAGE)
    for number in range(100):
        user = accounts.account((f"user{number:02}",))
        accounts.book(user, (number + 1,), 1, False, 0.0)
    assert STATE_BYTES_MAX == 1 << 24
    lower(STATE_BYTES_MAX=1000)
    text = account_state.saved(accounts, 600.0)
    assert 800 < len(text) <= 1000
    kept = [path for path, *_ in json.loads(text)["accounts"]]
    assert kept == [[], *[[f"user{99 - at}"] for at in range(len(kept) - 1)]]
    lower(STATE_BYTES_MAX=len(text) - 1)
    assert account_state.restore(accounts, text, 600.0) == f"too large: {len(text)} bytes, the limit is {len(text) - 1}"
