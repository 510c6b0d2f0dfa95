"""Grants, and the record of who holds what."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.jobs.holdings.holdings import OFFENDERS_SHOWN, Holdings, parse_grant


def R(*entries: tuple[str, dict[str, str]]) -> dict[str, Any]:  # noqa: N802
    return {"execution": {"R_lite": [{"rank": rank, "children": children} for rank, children in entries]}}


@pytest.fixture
def holdings() -> Any:
    made = Holdings()
    yield made
    made.check()


def test_a_core_is_held_once_and_both_jobs_are_named(holdings: Holdings) -> None:
    holdings.take(1, parse_grant(1, R(("0-3", {"core": "0-1", "gpu": "0"}))))
    holdings.take(2, parse_grant(2, R(("0-3", {"core": "2"}))))
    with pytest.raises(RemoteProtocolError, match=r"^job 3 was granted rank2-3/core1 held by job 1$"):
        holdings.take(3, parse_grant(3, R(("7", {"core": "1"}), ("2-4", {"core": "1"}))))
    with pytest.raises(RemoteProtocolError, match=re.escape("rank0/gpu0 held by job 1")):
        holdings.take(3, parse_grant(3, R(("0", {"gpu": "0", "core": "3"}))))
    assert 3 not in holdings
    holdings.give(1)
    holdings.take(3, parse_grant(3, R(("2-4", {"core": "1"}))))
    assert (holdings.ranks(1), holdings.ranks(3)) == (EMPTY, Idset.parse("2-4"))
    assert len(holdings) == 2


def test_a_scheduler_gone_wild_gets_a_short_answer(holdings: Holdings) -> None:
    for jobid in range(1, 50):
        holdings.take(jobid, parse_grant(jobid, R((str(jobid), {"core": "0"}))))
    with pytest.raises(RemoteProtocolError) as caught:
        holdings.take(99, parse_grant(99, R(("0-100", {"core": "0"}))))
    assert str(caught.value).count("held by") == OFFENDERS_SHOWN
    with pytest.raises(LocalProtocolError, match="while it held some"):
        holdings.take(1, parse_grant(1, R(("60", {"core": "0"}))))


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
def test_an_r_that_is_none_is_the_schedulers_fault(bad: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="R for job 5 is not an RFC 20 R"):
        parse_grant(5, bad)


def test_an_empty_grant_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="R for job 5 has no ranks"):
        parse_grant(5, R())


@pytest.mark.parametrize(
    "children", [{"core": "0-3,7"}, {"core": "1", "gpu": "0"}, {"core": "", "gpu": "2", "nic": "0-1"}]
)
def test_a_grant_of_one_target_is_read_as_if_it_were_one_of_several(children: dict[str, str]) -> None:
    (alone,) = (found := parse_grant(1, R(("70", children)))).parts
    *_, among_others = parse_grant(2, R(("1", {"core": "60"}), ("70", children))).parts
    assert alone == among_others
    assert (found.ranks, found.ncores) == (Idset.of([70]), len(Idset.parse(children["core"])))


@pytest.mark.parametrize("rank", ["07", "00", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "9999999", ""])
def test_a_rank_that_is_not_written_as_rfc_22_has_it_is_refused(rank: str) -> None:
    with pytest.raises(RemoteProtocolError, match="R for job 5"):
        parse_grant(5, R((rank, {"core": "0"})))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 3))), max_size=25))
def test_the_record_is_the_sum_of_what_is_held(steps: list[tuple[int, set[int], set[int]]]) -> None:
    record = Holdings()
    model: dict[int, dict[int, set[int]]] = {}
    for jobid, ranks, cores in steps:
        if jobid in model:
            given = Idset.of(ranks)
            record.give(jobid, given)
            model[jobid] = {rank: held for rank, held in model[jobid].items() if rank not in ranks}
            if not model[jobid]:
                del model[jobid]
        elif ranks and cores:
            clash = any(held.get(rank, set()) & cores for held in model.values() for rank in ranks)
            grant = parse_grant(jobid, R((str(Idset.of(ranks)), {"core": str(Idset.of(cores))})))
            if clash:
                with pytest.raises(RemoteProtocolError):
                    record.take(jobid, grant)
            else:
                record.take(jobid, grant)
                model[jobid] = dict.fromkeys(ranks, cores)
        record.check()
        for holder in range(1, 5):
            assert set(record.ranks(holder)) == set(model.get(holder, {}))


def test_parts_of_a_grant_are_read_and_checked() -> None:
    ours = {"writer": "fluxsched", "parts": {"lead": "0", "work": "1-3"}}
    granted = R(("0-3", {"core": "0"}))
    assert parse_grant(5, {**granted, "scheduling": ours}).by_part == {"lead": "0", "work": "1-3"}
    assert parse_grant(5, granted).by_part is parse_grant(5, {**granted, "scheduling": {"graph": {}}}).by_part is None
    with pytest.raises(RemoteProtocolError, match=r"R for job 5 is not an RFC 20 R: .*scheduling\.parts\['work'\]"):
        parse_grant(5, {**granted, "scheduling": {**ours, "parts": {"work": 3}}})


def test_a_grant_names_the_lowest_switch_above_all_its_hosts() -> None:
    granted = R(("0-3", {"core": "0"}))
    granted["execution"]["nodelist"] = ["n[0-3]"]
    leaves = [{"name": "l0", "hosts": "n[0-1]"}, {"name": "l1", "hosts": "n[2-3]"}]
    spine = {"name": "s", "switches": "l[0-1]"}

    def switch(*switches: object) -> str:
        scheduling = {"writer": "fluxsched", "topology": [*switches]}
        return parse_grant(5, {**granted, "scheduling": scheduling}).switch

    assert switch(*leaves, spine) == "s"
    assert switch(*leaves) == switch(leaves[0]) == parse_grant(5, granted).switch == ""
    assert switch({"name": "all", "hosts": "n[0-3]"}) == "all"
    with pytest.raises(RemoteProtocolError, match=r"R for job 5 is not an RFC 20 R: .*topology"):
        switch(3)
