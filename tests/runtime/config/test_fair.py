"""`[fair]` is read by one reader, from a file and from what `config.get` gives, with each fault at its line."""

from __future__ import annotations

import tomllib
from types import MappingProxyType
from typing import Any

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.runtime.config.changes import changes
from fluxsched.runtime.config.fair import fair_settings
from fluxsched.runtime.config.reader import parse_config
from fluxsched.sched.accounts.settings import WEIGHTS, Bank, FairSettings
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.accounts.tree import ACCOUNTS_MAX

SITE = """
[fair]
signal = "flow"
half-life = "2d"
usage = "dominant"
weights = { core = 1, gpu = 10, memory = "0.25/GiB", matlab = 3.5 }
shares = "all"
cap = 1.2
budget = 600
rate = 0
[fair.banks]
physics = 3
optics = { parent = "physics", weight = 2, cap = 1.0, users = { ann = 2 } }
"""
SETTLED = FairSettings(
    Signal.FLOW,
    2 * 86_400.0,
    True,
    MappingProxyType({"core": 1.0, "gpu": 10.0, "memory": 0.25 / 2**30, "matlab": 3.5}),
    True,
    1.2,
    600.0,
    0,
    {"physics": Bank(3.0), "optics": Bank(2.0, "physics", 1.0, {"ann": 2.0})},
)


def test_every_key_is_read_and_alike_from_the_object_that_a_scheduler_gets() -> None:
    assert parse_config(SITE, "site.toml").fair == SETTLED
    assert fair_settings(tomllib.loads(SITE)) == SETTLED


@pytest.mark.parametrize("config", [{}, {"fair": {}}, {"resource": {"exclude": "0"}}])
def test_without_a_table_everything_has_its_default(config: dict[str, Any]) -> None:
    assert fair_settings(config) == FairSettings()
    assert FairSettings().weights == WEIGHTS


def test_an_empty_table_of_banks_knows_no_bank() -> None:
    assert parse_config("[fair.banks]", "site.toml").fair.banks == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[fair]\nsignal = 'flows'", "2: [fair] signal: 'flows' is not one of flow, decayed-usage"),
        ("[fair]\nhalf-life = 0", "2: [fair] half-life: 0 s is not a time of at least 1 s"),
        ("[fair]\nhalf-life = 'infinity'", "2: [fair] half-life: inf s is not"),
        ("[fair]\nusage = 3", "2: [fair] usage: must be a string, not an integer"),
        ("[fair]\nshares = 'some'", "2: [fair] shares: 'some' is not one of active, all"),
        ("[fair]\ncap = nan", "2: [fair] cap: nan is not a number of at least 0"),
        ("[fair]\ncap = '1.2'", "2: [fair] cap: must be a number, not a string"),
        ("[fair]\nbudget = -1", "2: [fair] budget: -1 is not a number of at least 0"),
        ("[fair]\nrate = 65537", "2: [fair] rate: 65537 is not within 0-65536"),
        ("[fair]\nrate = -1", "2: [fair] rate: -1 is below 0"),
        ("[fair]\ncaps = 1", "2: [fair] unknown key 'caps'; known keys: banks, budget, cap, "),
        ("[fair]\nweights.core = -1", "2: [fair.weights] core: -1 is not a number of at least 0"),
        ("[fair]\nweights.core = 'x'", "2: [fair.weights] core: 'x' is not a weight: give a number, or one by a unit"),
        ("[fair]\nweights.core = '1.2.3/GB'", "2: [fair.weights] core: '1.2.3' is not a number"),
        ("[fair]\nweights.memory = '1/GiG'", "2: [fair.weights] memory: unit 'GiG' is not known: give B, kB, "),
        ("[fair]\nweights.cores = 1", "2: [fair.weights] cores: cores is not counted: give weights for core, gpu"),
        ("[fair]\nweights.node = 1", "2: [fair.weights] node: node is not counted"),
        ("[fair]\nweights = {}", "2: [fair] weights: all are 0: nothing would count"),
        ("[fair.banks]\na = 1\nb = 0", "3: [fair.banks.b] weight: 0 is not a number above 0"),
        ("[fair.banks]\na = 1\nb = -0.5", "3: [fair.banks.b] weight: -0.5 is not a number above 0"),
        ("[fair.banks]\nb = nan", "2: [fair.banks.b] weight: nan is not a number above 0"),
        (f"[fair.banks]\nb = 1{'0' * 400}", "2: [fair.banks] b: is beyond the range of a double"),
        ("[fair.banks]\nb = '3'", "2: [fair.banks] b: must be a number or a table, not a string"),
        ("[fair.banks.b]\nwieght = 2", "2: [fair.banks.b] unknown key 'wieght'; known keys: cap, parent, users"),
        ("[fair.banks.b]\n\nusers.ann = 0", "3: [fair.banks.b.users] ann: 0 is not a number above 0"),
        ("[fair.banks.b]\n\nparent = 'a'", "3: [fair.banks.b] parent: there is no bank 'a'; there are b"),
        (
            "[fair.banks]\na.parent = 'b'\nb.parent = 'a'",
            "2: [fair.banks.a] parent: parents in a circle, a -> b -> a: give one of them another parent, or none",
        ),
        (
            "[fair.banks]\n" + "".join(f"b{at} = {{ parent = 'b{at - 1}' }}\n" for at in range(1, 9)) + "b0 = 1",
            "8: [fair.banks] b7: is 8 levels deep, the limit is 7: give it another parent",
        ),
        (
            '[fair.banks]\na = 1\n"e\\u001b[31m\\n" = 1',
            r"""3: [fair.banks] "e\u001b[31m\n": 'e\x1b[31m\n' is not a name: it needs printable characters""",
        ),
        (
            "[policy.jobspec.defaults.system]\nbank = 'c'\n[fair.banks]\na = 1",
            "2: [policy.jobspec.defaults.system] bank: bank 'c' is not in [fair.banks]; there are: a",
        ),
        (
            '[policy.jobspec.defaults.system]\nbank = "a\\nb"',
            r"2: [policy.jobspec.defaults.system] bank: 'a\nb' is not a name: it needs printable characters",
        ),
    ],
)
def test_a_fault_is_named_with_line_and_key(text: str, told: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_config(text, "site.toml")
    assert str(refused.value).startswith(f"site.toml:{told}")
    assert str(refused.value).isprintable()


def test_all_faults_come_at_once_without_lines_where_there_is_no_file() -> None:
    with pytest.raises(InvalidValue) as refused:
        fair_settings({"fair": {"cap": -1, "rate": "x", "banks": {"a": {"weight": 0}}}})
    assert str(refused.value) == (
        "[fair] rate: must be an integer, not a string; [fair] cap: -1 is not a number of at least 0; "
        "[fair.banks.a] weight: 0 is not a number above 0"
    )
    with pytest.raises(InvalidValue, match="fair: must be a table, not an array"):
        fair_settings({"fair": [1]})


def test_more_accounts_than_a_tree_holds_are_refused() -> None:
    users = {f"u{at}": 1 for at in range(ACCOUNTS_MAX)}
    with pytest.raises(InvalidValue, match=f"{ACCOUNTS_MAX + 1} banks and users, the limit is {ACCOUNTS_MAX}"):
        fair_settings({"fair": {"banks": {"a": {"users": users}}}})
    with pytest.raises(InvalidValue, match=f"{ACCOUNTS_MAX + 1} names are above the limit of {ACCOUNTS_MAX}"):
        fair_settings({"fair": {"banks": users | {"a": 1}}})


def test_the_default_bank_is_read() -> None:
    text = "[policy.jobspec.defaults.system]\nbank = 'a'\n"
    assert parse_config(text, "x").defaults.bank == "a"
    assert parse_config(f"{text}[fair.banks]\na = 1", "x").defaults.bank == "a"
    with pytest.raises(InvalidValue, match=r"\[queues.q.policy.jobspec.defaults.system\] unknown key 'bank'"):
        parse_config("[queues.q.policy.jobspec.defaults.system]\nbank = 'a'\n", "x")


def test_a_reload_takes_all_of_it() -> None:
    found = changes({"fair": {"cap": 1}}, {"fair": {"cap": 2, "banks": {"a": 1}}})
    assert [(change.key, change.is_live) for change in found] == [("fair.cap", True), ("fair.banks.a", True)]
