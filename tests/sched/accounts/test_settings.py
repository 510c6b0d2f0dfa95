"""What a site settles about fair shares is checked once, by name."""

from math import inf, nan

import pytest

from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded
from fluxsched.sched.fair.accounts import RATE_MAX, Bank, FairSettings
from tests.sched.site import limit

DEPTH_MAX = limit("DEPTH_MAX")


def test_banks_have_a_path():
    fair = FairSettings(banks={"physics": Bank(3), "optics": Bank(parent="physics", users={"ann": 2})})
    assert fair.path("optics") == ("physics", "optics")
    assert FairSettings().path("any") == ("any",)


@pytest.mark.parametrize("weight", [0.0, -1.0, nan, inf])
def test_weights_are_above_0(weight):
    with pytest.raises(InvalidValue, match=r"banks\.a\.weight: .* above 0"):
        FairSettings(banks={"a": Bank(weight)})
    with pytest.raises(InvalidValue, match=r"banks\.a\.users\.ann: .* above 0"):
        FairSettings(banks={"a": Bank(users={"ann": weight})})


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"half_life_s": 0.5}, "half-life"),
        ({"half_life_s": nan}, "half-life"),
        ({"weights": {"core": -1.0}}, r"weights\.core"),
        ({"cap": nan}, "cap"),
        ({"budget_min": -1.0}, "budget"),
        ({"weights": {"core": 0.0}}, "weights: all are 0"),
        ({"rate": -1}, "rate"),
        ({"rate": RATE_MAX + 1}, "rate"),
        ({"banks": {"a": Bank(parent="b")}}, r"banks\.a\.parent: there is no bank 'b'; there is only a$"),
        ({"banks": {"a": Bank(cap=-1.0)}}, r"banks\.a\.cap"),
        ({"banks": {"a": Bank(parent="b"), "b": Bank(parent="a")}}, "in a circle, a -> b -> a: give one"),
        ({"banks": {"a": Bank(parent="a")}}, "circle, a -> a"),
    ],
)
def test_what_is_wrong_is_named(values, part):
    with pytest.raises(InvalidValue, match=part):
        FairSettings(**values)


def test_all_that_is_wrong_is_told_at_its_place():
    chain = {f"b{at}": Bank(parent=f"b{(at + 1) % 20}") for at in range(20)}
    with pytest.raises(InvalidParts) as told:
        FairSettings(cap=-1.0, banks={"a\x1b[1m": Bank(0.0, users={"b\nc": nan}), "led": Bank(parent="b3"), **chain})
    assert [path for path, _ in told.value.faults] == [
        ("cap",),
        ("banks", "a\x1b[1m"),
        ("banks", "a\x1b[1m", "weight"),
        ("banks", "a\x1b[1m", "users", "b\nc"),
        ("banks", "a\x1b[1m", "users", "b\nc"),
        ("banks", "b3", "parent"),  # one circle, named once, also where another leads into it
    ]
    assert "b3 -> b4 -> b5 -> b6 -> b7 -> b8 -> b9 -> b10 -> ... -> b3: " in str(told.value)
    assert str(told.value).isprintable()


def test_a_user_is_not_the_bank_of_that_name():
    fair = FairSettings(banks={"physics": Bank(), "ann": Bank(parent="physics")})
    assert fair.account_path("physics", "bob") == ("physics", "bob")
    assert fair.account_path("physics", "ann") != fair.path("ann")
    assert fair.account_path("ann", "ann") == ("physics", "ann", "ann")


def test_limits():
    deep = {f"b{at}": Bank(parent=f"b{at - 1}" if at else None) for at in range(DEPTH_MAX)}
    with pytest.raises(InvalidValue, match=f"the limit is {DEPTH_MAX - 1}"):
        FairSettings(banks=deep)
    deep.popitem()
    FairSettings(banks=deep)
    with pytest.raises(LimitExceeded, match="remove some"):
        FairSettings(weights={f"r{at}": 1.0 for at in range(limit("RESOURCES_MAX") + 1)})
    with pytest.raises(LimitExceeded, match="banks and users"):
        FairSettings(banks={"a": Bank(users={f"u{at}": 1.0 for at in range(limit("ACCOUNTS_MAX"))})})
