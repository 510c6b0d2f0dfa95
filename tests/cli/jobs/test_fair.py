"""`fluxsched fair` and `report`: what they ask for, and the order of rows; `golden/accounts.txt` has what they show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxsched.cli.accounts import ADVISED_MAX, tree

from ..sites import ACCOUNTS, FAIR_SETTINGS, account, fair, report, report_row


def test_parts_are_asked_for_until_the_last(cli: Any) -> None:
    def answer(payload: dict[str, Any]) -> dict[str, Any]:
        at = payload["start"]
        return FAIR_SETTINGS | {"accounts": ACCOUNTS[at : at + 2], "next": at + 2 if at + 2 < len(ACCOUNTS) else None}

    done = cli("fair", "--json", "--group", "lab", answers={"sched.accounts": answer})
    assert json.loads(done.out)["accounts"] == ACCOUNTS
    assert [payload for topic, payload in done.calls if topic == "sched.accounts"] == [
        {"group": "lab", "start": start} for start in (0, 2, 4)
    ]


def test_a_bank_that_is_not_there_is_named_as_text(cli: Any) -> None:
    refused = cli("fair", "--bank", "e\x1b[31m", answers=fair(*ACCOUNTS))
    assert (refused.code, refused.out) == (1, "")
    assert r"no such bank: e\x1b[31m; there are standby, physics, optics" in refused.err


def test_a_user_who_is_called_like_a_bank_stands_below_it() -> None:
    accounts = [account("b", "b", user=True), account("b"), account("b", "a", user=True), account("b", "z")]
    assert [(line.info["path"], line.depth) for line in tree(accounts, FAIR_SETTINGS)] == [
        (["b"], 0), (["b", "z"], 1), (["b", "a"], 1), (["b", "b"], 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("sampled_s", "said"), [(0.0, "no GPUs were sampled in this time\n"), (60.0, "")])
def test_a_report_of_wasted_gpus_says_that_none_were_sampled(cli: Any, sampled_s: float, said: str) -> None:
    answers = report(rows=[report_row("a", gpu_sampled_seconds=sampled_s)])
    assert cli("report", "--by", "bank", "--waste=gpus", answers=answers).err == said
    assert cli("report", "--by", "bank", "--waste=cores", answers=answers).err == ""


def test_only_those_who_waste_most_gpus_are_advised(cli: Any) -> None:
    rows = [report_row(f"bank{at}", gpu_sampled_seconds=3600.0 * at) for at in range(1, ADVISED_MAX + 3)]
    told = [
        line
        for line in cli("report", "--by", "bank", "--waste", answers=report(rows=rows)).out.splitlines()
        if "ask for" in line
    ]
    assert [line.split(":")[0] for line in told] == [f"bank{at}" for at in range(ADVISED_MAX + 2, 2, -1)]
