"""What a site settles about fair shares is checked once, by name."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.accounts import settings
from fluxsched.sched.accounts.settings import RATE_MAX, Bank, FairSettings
from fluxsched.sched.accounts.tree import DEPTH_MAX


def test_banks_have_a_path() -> None:
    fair = FairSettings(banks={"physics": Bank(3), "optics": Bank(parent="physics", users={"ann": 2})})
    assert fair.path("optics") == ("physics", "optics")
    assert FairSettings().path("any") == ("any",)


@pytest.mark.parametrize("weight", [0.0, -1.0, nan, inf])
def test_weights_are_above_0(weight: float) -> None:
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
        ({"rate": -1}, "rate"),
        ({"rate": RATE_MAX + 1}, "rate"),
        ({"banks": {"a": Bank(parent="b")}}, r"banks\.a\.parent: no bank 'b'"),
        ({"banks": {"a": Bank(cap=-1.0)}}, r"banks\.a\.cap"),
        ({"banks": {"a": Bank(parent="b"), "b": Bank(parent="a")}}, "circle: a -> b -> a"),
        ({"banks": {"a": Bank(parent="a")}}, "circle: a -> a"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidValue, match=part):
        FairSettings(**values)


def test_limits() -> None:
    deep = {f"b{at}": Bank(parent=f"b{at - 1}" if at else None) for at in range(DEPTH_MAX)}
    with pytest.raises(InvalidValue, match=f"the limit is {DEPTH_MAX - 1}"):
        FairSettings(banks=deep)
    deep.popitem()
    FairSettings(banks=deep)
    with pytest.raises(LimitExceeded, match="remove some"):
        FairSettings(weights={f"r{at}": 1.0 for at in range(settings.RESOURCES_MAX + 1)})
    with pytest.raises(LimitExceeded, match="banks and users"):
        FairSettings(banks={"a": Bank(users={f"u{at}": 1.0 for at in range(settings.ACCOUNTS_MAX)})})
