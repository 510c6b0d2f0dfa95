"""Grants, and the record of who holds what."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.jobs.grants import OFFENDERS_SHOWN, Grants, parse_grant
from tests.jobs.elastic import elastic, grow, released, shrink

# Grants, and the record of who holds what.


def R(*entries):
    return {"execution": {"R_lite": [{"rank": rank, "children": children} for rank, children in entries]}}


@pytest.fixture
def grants():
    made = Grants()
    yield made
    made.check()


def test_a_core_is_held_once_and_both_jobs_are_named(grants):
    grants.add(1, parse_grant(1, R(("0-3", {"core": "0-1", "gpu": "0"}))))
    grants.add(2, parse_grant(2, R(("0-3", {"core": "2"}))))
    with pytest.raises(RemoteProtocolError, match=r"^job 3 was granted rank2-3/core1 held by job 1$"):
        grants.add(3, parse_grant(3, R(("7", {"core": "1"}), ("2-4", {"core": "1"}))))
    with pytest.raises(RemoteProtocolError, match=re.escape("rank0/gpu0 held by job 1")):
        grants.add(3, parse_grant(3, R(("0", {"gpu": "0", "core": "3"}))))
    assert 3 not in grants
    grants.release(1)
    grants.add(3, parse_grant(3, R(("2-4", {"core": "1"}))))
    assert (grants.ranks(1), grants.ranks(3)) == (EMPTY, Idset.parse("2-4"))
    assert len(grants) == 2


def test_a_scheduler_gone_wild_gets_a_short_answer(grants):
    for jobid in range(1, 50):
        grants.add(jobid, parse_grant(jobid, R((str(jobid), {"core": "0"}))))
    with pytest.raises(RemoteProtocolError) as caught:
        grants.add(99, parse_grant(99, R(("0-100", {"core": "0"}))))
    assert str(caught.value).count("held by") == OFFENDERS_SHOWN
    with pytest.raises(LocalProtocolError, match="while it held some"):
        grants.add(1, parse_grant(1, R(("60", {"core": "0"}))))


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {"execution": {}},
        R(("1,1", {"core": "0"})),
        R(("0", {"core": "x"})),
        R(("0", {"core": "0"}), ("0", {"core": "0"})),
        {"execution": {"R_lite": [{"rank": 0, "children": {"core": "0"}}]}},
        {"execution": {"R_lite": [{"rank": "0", "children": {"core": ["0"]}}]}},
        {"execution": {"R_lite": [{"rank": "0", "children": ["core"]}]}},
        {"execution": R(("0", {"core": "0"}))["execution"] | {"nodelist": [0]}},
        {"execution": R(("0", {"core": "0"}))["execution"] | {"starttime": "today"}},
    ],
)
def test_an_r_that_is_none_is_the_schedulers_fault(bad):
    with pytest.raises(RemoteProtocolError, match="R for job 5 is not an RFC 20 R"):
        parse_grant(5, bad)


def test_an_empty_grant_is_refused():
    with pytest.raises(RemoteProtocolError, match="R for job 5 has no ranks"):
        parse_grant(5, R())


@pytest.mark.parametrize(
    "children", [{"core": "0-3,7"}, {"core": "1", "gpu": "0"}, {"core": "", "gpu": "2", "nic": "0-1"}]
)
def test_a_grant_of_one_target_is_read_as_if_it_were_one_of_several(children):
    (alone,) = (found := parse_grant(1, R(("70", children)))).parts
    *_, among_others = parse_grant(2, R(("1", {"core": "60"}), ("70", children))).parts
    assert alone == among_others
    assert (found.ranks, found.ncores) == (Idset.of([70]), len(Idset.parse(children["core"])))


@pytest.mark.parametrize("rank", ["07", "00", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "9999999", ""])
def test_a_rank_that_is_not_written_as_rfc_22_has_it_is_refused(rank):
    with pytest.raises(RemoteProtocolError, match="R for job 5"):
        parse_grant(5, R((rank, {"core": "0"})))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 3))), max_size=25))
def test_the_record_is_the_sum_of_what_is_held(steps):
    record = Grants()
    model = {}
    for jobid, ranks, cores in steps:
        if jobid in model:
            given = Idset.of(ranks)
            record.release(jobid, given)
            model[jobid] = {rank: held for rank, held in model[jobid].items() if rank not in ranks}
            if not model[jobid]:
                del model[jobid]
        elif ranks and cores:
            clash = any(held.get(rank, set()) & cores for held in model.values() for rank in ranks)
            grant = parse_grant(jobid, R((str(Idset.of(ranks)), {"core": str(Idset.of(cores))})))
            if clash:
                with pytest.raises(RemoteProtocolError):
                    record.add(jobid, grant)
            else:
                record.add(jobid, grant)
                model[jobid] = dict.fromkeys(ranks, cores)
        record.check()
        for holder in range(1, 5):
            assert set(record.ranks(holder)) == set(model.get(holder, {}))


def test_parts_of_a_grant_are_read_and_checked():
    ours = {"writer": "fluxsched", "parts": {"lead": "0", "work": "1-3"}}
    granted = R(("0-3", {"core": "0"}))
    assert parse_grant(5, {**granted, "scheduling": ours}).by_part == {"lead": "0", "work": "1-3"}
    assert parse_grant(5, granted).by_part is parse_grant(5, {**granted, "scheduling": {"graph": {}}}).by_part is None
    with pytest.raises(RemoteProtocolError, match=r"R for job 5 is not an RFC 20 R: .*scheduling\.parts\['work'\]"):
        parse_grant(5, {**granted, "scheduling": {**ours, "parts": {"work": 3}}})


def test_a_grant_names_the_lowest_switch_above_all_its_hosts():
    granted = R(("0-3", {"core": "0"}))
    granted["execution"]["nodelist"] = ["n[0-3]"]
    leaves = [{"name": "l0", "hosts": "n[0-1]"}, {"name": "l1", "hosts": "n[2-3]"}]
    spine = {"name": "s", "switches": "l[0-1]"}

    def switch(*switches):
        scheduling = {"writer": "fluxsched", "topology": [*switches]}
        return parse_grant(5, {**granted, "scheduling": scheduling}).switch

    assert switch(*leaves, spine) == "s"
    assert switch(*leaves) == switch(leaves[0]) == parse_grant(5, granted).switch == ""
    assert switch({"name": "all", "hosts": "n[0-3]"}) == "all"
    with pytest.raises(RemoteProtocolError, match=r"R for job 5 is not an RFC 20 R: .*topology"):
        switch(3)


# Amounts in the job manager's record: no more is granted than there is, and each goes back with its target.


GIB = 1 << 30
ids = Idset.parse


def r_with_amounts(ranks, cores="0", memory=0, matlab=0):
    entry = {"rank": ranks, "children": {"core": cores}}
    hosts = [f"n{rank}" for rank in ids(ranks)]
    execution = {"R_lite": [entry], "nodelist": hosts, "starttime": 0.0, "expiration": 0.0}
    if memory:
        entry["amounts"] = {"memory": memory}
    if matlab:
        execution["shared"] = {"matlab": matlab}
    return {"version": 1, "execution": execution}


THERE = ResourceSet.parse(r_with_amounts("0-3", "0-7", 16 * GIB, 2))


@pytest.fixture
def watched(new_world):
    """A world whose manager knows how much there is."""
    made = new_world(there=lambda: THERE)
    made.scheduler()
    return made


def held(grants):
    return {rank: children.amounts for rank, children in grants.entries()}, grants.shared


@pytest.mark.parametrize(
    ("granted", "told"),
    [
        (r_with_amounts("1", "1", 5 * GIB), "^job 2 was granted 5 GiB memory where 4 GiB memory is free of rank 1$"),
        (r_with_amounts("0-1", "1", 5 * GIB), "of rank 1$"),
        (r_with_amounts("0", "1", 0, 2), "^job 2 was granted 2 matlab where 1 matlab is free of the instance$"),
        (r_with_amounts("9", "1", 1), "^job 2 was granted 1 memory where 0 memory is free of rank 9$"),
    ],
)
def test_more_than_is_free_is_refused_and_changes_nothing(watched, granted, told):
    watched.run(1, r_with_amounts("1", "0", 12 * GIB, 1))
    before = held(watched.manager.grants)
    watched.submit(2)
    with pytest.raises(RemoteProtocolError, match=told):
        watched.grant(2, granted)
    assert held(watched.manager.grants) == before == ({1: (("memory", 12 * GIB),)}, (("matlab", 1),))
    watched.grant(2, r_with_amounts("1", "1", 4 * GIB, 1))
    assert held(watched.manager.grants) == ({1: (("memory", 16 * GIB),)}, (("matlab", 2),))


def test_a_rank_s_amounts_go_back_with_it_and_those_of_the_instance_with_the_last_one(watched):
    watched.run(1, r_with_amounts("0-2", "0", 9 * GIB, 2))
    watched.do("finished", 1, 0)
    watched.do("released", 1, ids("1"), False)
    [freed] = watched.freed()
    assert freed.R["execution"]["R_lite"] == [{"rank": "1", "children": {"core": "0"}, "amounts": {"memory": 9 * GIB}}]
    assert held(watched.manager.grants) == (dict.fromkeys((0, 2), (("memory", 9 * GIB),)), (("matlab", 2),))
    watched.do("released", 1, None, True)
    assert held(watched.manager.grants) == ({}, ())


def test_a_restart_restores_them_even_if_there_is_less_by_now(watched, new_world):
    watched.run(1, r_with_amounts("0-1", "0", 9 * GIB, 2))  # runs on
    watched.run(2, r_with_amounts("1-2", "1", 2 * GIB))  # its end was stored, and the release of one target
    watched.do("finished", 2, 0)
    watched.do("released", 2, ids("1"), False)
    again = new_world(there=lambda: ResourceSet.parse(r_with_amounts("0-1", "0-7", 8 * GIB, 1)))
    restored = again.manager.restore(watched.rows(), watched.now_s + 1)
    again.perform(restored.effects)
    assert restored.orphans == (1,)
    grants = again.manager.grants
    assert held(grants) == (dict.fromkeys((0, 1), (("memory", 9 * GIB),)), (("matlab", 2),))
    with pytest.raises(RemoteProtocolError, match="where 0 memory is free of rank 1; 1 matlab where 0 matlab is free"):
        grants.add(3, parse_grant(3, r_with_amounts("1", "1", GIB, 1)))
    again.do("exec_failed", 1, "the instance was restarted")
    assert held(grants) == ({}, ())
    grants.add(3, parse_grant(3, r_with_amounts("1", "1", 8 * GIB, 1)))


amounts = st.integers(0, 8)


@given(st.lists(st.tuples(st.sampled_from(["0", "1", "0-1", "0-3"]), amounts, amounts), max_size=12), st.data())
def test_what_is_held_is_the_sum_of_what_jobs_hold(asked, data):
    """Whatever is granted and freed in whatever order; `check` compares with the sum."""
    grants = Grants(lambda: ResourceSet.parse(r_with_amounts("0-3", "0-63", 16, 16)))
    mine = {}
    for jobid, (ranks, memory, matlab) in enumerate(asked):
        free = 16 - max([dict(amounts).get("memory", 0) for rank, amounts in held(grants)[0].items()
                         if rank in ids(ranks)], default=0)  # fmt: skip
        fits = memory <= free and matlab <= 16 - dict(grants.shared).get("matlab", 0)
        try:
            grants.add(jobid, parse_grant(jobid, r_with_amounts(ranks, str(jobid), memory, matlab)))
        except RemoteProtocolError:
            assert not fits
        else:
            assert fits
            mine[jobid] = ids(ranks)
        if mine and data.draw(st.booleans()):
            one = data.draw(st.sampled_from(sorted(mine)))
            given_back = data.draw(st.sampled_from([mine[one], mine[one].first(1)]))
            grants.release(one, given_back)
            mine[one] -= given_back
            if not mine[one]:
                del mine[one]
        grants.check()
    for jobid in mine:
        grants.release(jobid)
    assert held(grants) == ({}, ())


def test_amounts_come_with_targets_that_a_job_grows_by_and_go_with_them(watched):
    watched.submit(1, elastic("1-3"))
    watched.grant(1, r_with_amounts("0", "0-7", 16 * GIB, 1))
    grow(watched, r_with_amounts("1", "0-7", 16 * GIB))
    shares = dict.fromkeys((0, 1), (("memory", 16 * GIB),))
    assert held(watched.manager.grants) == (shares, (("matlab", 1),))
    assert ResourceSet.parse(watched.job().R).shared == (("matlab", 1),)
    with pytest.raises(RemoteProtocolError, match="was granted 17 GiB memory where 16 GiB memory is free of rank 2"):
        grow(watched, r_with_amounts("2", "0-7", 17 * GIB))
    with pytest.raises(RemoteProtocolError, match="cannot grow by shared resources \\(matlab\\)"):
        grow(watched, r_with_amounts("2", "0-7", GIB, 1))
    shrink(watched, "0")
    released(watched, "0")
    assert held(watched.manager.grants) == ({1: shares[1]}, (("matlab", 1),))
    watched.end()
    assert held(watched.manager.grants) == ({}, ())
