"""Samples are sums: they can be put together in any order, and waits by ranges give quantiles."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.runtime.history.cores import cores_by_state
from fluxsched.runtime.history.samples import CORE_STATES, MachineSample
from fluxsched.runtime.loop.histogram import LONG_S, WAITS_S, Histogram, quantile
from fluxsched.runtime.storage.usage import WAITS

few = st.integers(0, 50)
seconds = few.map(float)
samples = st.builds(
    MachineSample,
    seconds,
    st.lists(seconds, min_size=5, max_size=5),
    st.dictionaries(st.sampled_from(["", "batch", "debug"]), st.lists(seconds, min_size=2, max_size=2)),
    few,
    few,
    st.lists(few, min_size=4, max_size=4),
    st.dictionaries(st.integers(0, len(WAITS_S)), few),
)


def copy(sample: MachineSample) -> MachineSample:
    return MachineSample.of_row(sample.row())


def total(*parts: MachineSample) -> MachineSample:
    found = MachineSample()
    for part in parts:
        found.add(part)
    return found


@settings(max_examples=50)
@given(samples, samples, samples)
def test_the_order_in_which_samples_are_put_together_is_of_no_matter(
    one: MachineSample, two: MachineSample, three: MachineSample
) -> None:
    assert copy(one) == one
    assert total(one, total(two, three)) == total(total(three, one), two)


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 1e7)))
def test_monitoring_and_history_count_the_same_waits(waits: list[float]) -> None:
    fine, coarse = Histogram(WAITS_S), Histogram(LONG_S)
    for wait in waits:
        fine.observe(wait)
        coarse.observe(wait)
    assert fine.coarser(LONG_S) == coarse.value()
    assert len(fine.counts()) == WAITS


@settings(max_examples=50)
@given(st.lists(st.floats(0.0101, WAITS_S[-1]), min_size=1), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_in_the_range_of_the_true_one(waits: list[float], part: float) -> None:
    fine = Histogram(WAITS_S)
    for wait in waits:
        fine.observe(wait)
    true = sorted(waits)[max(0, -int(-part * len(waits) // 1) - 1)]
    found = quantile(WAITS_S, fine.counts(), part)
    assert found is not None
    assert true / 1.67 <= found <= true * 1.67


def test_ranges_are_narrow_and_those_of_monitoring_are_among_them() -> None:
    assert set(LONG_S) <= set(WAITS_S)
    assert all(high <= low * 1.67 for low, high in pairwise(WAITS_S))
    assert quantile(WAITS_S, [0] * len(WAITS_S), 0.5) is None


def test_each_core_is_in_one_state_and_those_that_jobs_hold_are_allocated() -> None:
    rlite = [{"rank": "0-9", "children": {"core": "0-7"}}]
    resources = ResourceSet.parse(
        {"version": 1, "execution": {"R_lite": rlite, "nodelist": ["n[0-9]"], "starttime": 0, "expiration": 0}}
    )
    names = {"drained": "1", "draining": "2", "offline": "3", "torpid": "4", "lost": "5", "excluded": "6", "free": "0"}
    states = {name: Idset.parse(ranks) for name, ranks in names.items()} | {"allocated": Idset.parse("7-9")}
    found = cores_by_state(resources, states, {2: 0b11, 4: 0b1, 7: 0xFF})
    assert found == {"allocated": 11, "drained": 8 + 6, "down": 8 + 7 + 8, "excluded": 8, "free": 80 - 11 - 14 - 23 - 8}
    assert set(found) == set(CORE_STATES)
