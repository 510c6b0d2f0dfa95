"""The difference of two states of a group: what is applied in its order leads from one to the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, GroupChange, GroupState, ResourceSet, difference

RANKS = Idset(255)
R = ResourceSet.parse({"version": 1, "execution": {"R_lite": [{"rank": "0-7", "children": {"core": "0-3"}}]}})
SOME = st.builds(Idset, st.integers(0, 255))


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    resources = R.with_expiration(0.0, draw(st.sampled_from([0.0, 5.0, 9.0])))
    for name in ("ssd", "big"):
        if having := draw(SOME):
            resources = resources.add_property(name, having)
    targets = draw(SOME)
    return GroupState(resources, targets, draw(SOME) & targets)


@given(states(), states())
def test_a_difference_leads_from_one_state_to_the_other(before, after):
    change = difference(before, after) or GroupChange()
    joined = change.joined
    assert joined.isdisjoint(before.targets)
    assert (before.targets | joined) - change.shrink == after.targets
    assert ((before.online - change.shrink - change.offline) | change.online) == after.online
    assert joined <= change.online | change.offline <= after.targets
    stay = before.targets & after.targets
    for name in ("ssd", "big"):
        has, had = (state.resources.properties.get(name, EMPTY) for state in (after, before))
        gained, lost = (table.get(name, EMPTY) for table in (change.property_add, change.property_remove))
        assert ((had & stay) | gained) - lost == has & stay
        assert gained.isdisjoint(had)
        assert lost <= had & stay
    times = before.resources.expiration_s, after.resources.expiration_s
    assert change.expiration_s == (None if times[0] == times[1] else times[1])


@given(states())
def test_nothing_changed(state):
    assert difference(state, state) is None


def test_a_grow_describes_what_joins_alone():
    change = difference(GroupState(R, Idset(1), EMPTY), GroupState(R, Idset(7), Idset(2)))
    assert change == GroupChange(R.restrict(Idset(6)), online=Idset(2), offline=Idset(4))
    assert difference(GroupState(EMPTY_R, EMPTY, EMPTY), GroupState(R, EMPTY, EMPTY)) is None
