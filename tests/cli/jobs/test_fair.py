"""`fluxsched fair`: accounts as a tree that people read, and as JSON that programs do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxsched.cli.accounts import tree
from fluxsched.errors import RPCError

SETTINGS = {
    "signal": "decayed-usage", "half_life": 604800.0, "weights": {"core": 1.0}, "shares": "active", "capacity": 64.0,
    "budget": None, "rate": 60,
}  # fmt: skip


def info(*path: str, user: bool = False, **values: Any) -> dict[str, Any]:
    usual = {
        "path": list(path), "user": user, "active": True, "weight": 1.0, "share": 0.25, "fair_usage": 16.0,
        "usage": 8.0, "signal": 4.0, "firm_usage": 8.0, "firm_signal": 8.0, "cap": None, "budget_left": None,
        "held": {"core": 8}, "waiting": 0, "running": 1, "preempted": 0,
    }  # fmt: skip
    return usual | values


ACCOUNTS = [
    info("standby", weight=0.01, active=False, usage=0.0, signal=0.5, held={}, running=0, preempted=3),
    info("physics", weight=3.0, share=1.0, fair_usage=64.0, waiting=12, running=3),
    info("physics", "zoe", user=True, waiting=12),
    info("physics", "optics", weight=2.0, share=0.5, fair_usage=32.0),
    info("physics", "optics", "ann", user=True, held={"core": 8, "memory": 2**33}),
]


@pytest.fixture
def shown(cli: Any) -> Any:
    def run(*args: str, accounts: Any = ACCOUNTS, **settings: Any) -> Any:
        answer = SETTINGS | settings | {"accounts": accounts, "next": None}
        return cli("fair", *args, answers={"sched.accounts": lambda payload: dict(answer)})

    return run


def test_banks_are_above_their_users_and_what_is_not_configured_has_no_column(shown: Any) -> None:
    done = shown()
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "ACCOUNT          WEIGHT SHARE%  USED% HISTORY%  WAIT   RUN PREEMPTED\n"
        "physics               3    100   12.5     6.25    12     3         0\n"
        "  optics              2     50   12.5     6.25     0     1         0\n"
        "    ann               1     25   12.5     6.25     0     1         0\n"
        "  zoe                 1     25   12.5     6.25    12     1         0\n"
        "standby            0.01      -      0     0.78     0     0         3\n"
    )


def test_limits_have_columns_of_their_own(shown: Any) -> None:
    limited = [info("a", cap=19.2), info("a", "ann", user=True, cap=19.2, budget_left=300.0)]
    assert shown(accounts=limited).out == (
        "ACCOUNT          WEIGHT SHARE%  USED% HISTORY%   CAP% BUDGET(min)  WAIT   RUN PREEMPTED\n"
        "a                     1     25   12.5     6.25     30                 0     1         0\n"
        "  ann                 1     25   12.5     6.25     30         300     0     1         0\n"
    )


def test_a_budget_that_is_spent_by_all_has_a_column(shown: Any) -> None:
    spent = [info("a"), info("a", "ann", user=True, budget_left=0.0)]
    assert shown("-n", "-o", "{account} ?:{budget:>3}", accounts=spent).out == "a\n  ann   0\n"


def test_shares_of_accounts_without_jobs_are_shown_where_they_count(shown: Any) -> None:
    idle = [info("a", active=False, cap=19.2)]
    columns = ("-n", "-o", "{share} {cap} {fair} {limit}")
    assert shown(*columns, accounts=idle).out == "- - - -\n"
    assert shown(*columns, accounts=idle, shares="all").out == "25 30 16 19.2\n"
    assert shown(*columns, accounts=[info("a", cap=19.2)], capacity=0.0).out == "  16 19.2\n"


def test_what_is_held_in_units_of_weight(shown: Any) -> None:
    assert shown("-o", "long", "--bank", "optics").out == (
        "ACCOUNT          WEIGHT     FAIR    USAGE   SIGNAL     FIRM  WAIT   RUN PREEMPTED HELD\n"
        "optics                2       32        8        4        8     0     1         0 core=8\n"
        "  ann                 1       16        8        4        8     0     1         0 core=8,memory=8GiB\n"
    )


def test_a_bank_with_all_below(shown: Any) -> None:
    assert shown("-n", "-o", "{path}", "--bank", "standby", "--bank", "optics").out.split() == [
        "physics/optics", "physics/optics/ann", "standby"
    ]  # fmt: skip
    refused = shown("--bank", "zoe", "--bank", "e\x1b[31m")
    assert (refused.code, refused.out) == (1, "")
    assert r"there is no bank zoe, e\x1b[31m; there are standby, physics, optics" in refused.err


def test_json_is_the_answer_as_it_came(shown: Any) -> None:
    assert json.loads(shown("--json").out) == SETTINGS | {"accounts": ACCOUNTS}
    assert json.loads(shown("--json", "--bank", "standby").out) == SETTINGS | {"accounts": ACCOUNTS[:1]}
    assert json.loads(shown("--json", accounts=[]).out) == SETTINGS | {"accounts": []}


def test_parts_are_asked_for_until_the_last(cli: Any) -> None:
    def answer(payload: dict[str, Any]) -> dict[str, Any]:
        at = payload["start"]
        return SETTINGS | {"accounts": ACCOUNTS[at : at + 2], "next": at + 2 if at + 2 < len(ACCOUNTS) else None}

    done = cli("fair", "--json", "--group", "lab", answers={"sched.accounts": answer})
    assert json.loads(done.out)["accounts"] == ACCOUNTS
    assert [payload for topic, payload in done.calls if topic == "sched.accounts"] == [
        {"group": "lab", "start": start} for start in (0, 2, 4)
    ]


def test_where_there_are_none(cli: Any, shown: Any) -> None:
    assert "no accounts yet: the first job of a user in a bank makes one" in shown(accounts=[]).err
    refusal = RPCError("this scheduler keeps no accounts: use a policy that does, such as fair:backfill=easy", 95)
    done = cli("fair", answers={"sched.accounts": refusal})
    assert (done.code, done.out) == (1, "")
    assert "use a policy that does, such as fair:backfill=easy" in done.err


def test_nothing_that_a_terminal_obeys_is_printed(shown: Any) -> None:
    done = shown(accounts=[info("e\x1b[31m\nvil")])
    assert r"e\x1b[31m\nvil" in done.out
    assert "\x1b" not in done.out
    assert "\x1b" not in shown("--json", accounts=[info("e\x1b[31m\nvil")]).out


def test_a_user_who_is_called_like_a_bank_stands_below_it() -> None:
    lines = tree([info("b", "b", user=True), info("b"), info("b", "a", user=True), info("b", "z")], SETTINGS)
    assert [(line.info["path"], line.depth) for line in lines] == [
        (["b"], 0), (["b", "z"], 1), (["b", "a"], 1), (["b", "b"], 1)
    ]  # fmt: skip
