"""ResourceSet (RFC 20): vectors, the laws of sets against a model of plain Python sets, and every refusal."""

from __future__ import annotations

import copy
import importlib.util
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import resources, rlite, topology
from fluxsched.core import text as documents
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, ID_MAX, Idset
from fluxsched.core.resources import EMPTY_R, NAMES_CHARS_MAX, SCAN_MAX, Children, GrowingResources, ResourceSet
from fluxsched.core.rlite import KINDS_MAX, Entry
from fluxsched.errors import InvalidValue, LimitExceeded
from tests.generated.share import examples

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc20_r.json").read_text())["cases"]
ids = Idset.parse

SPEC = importlib.util.spec_from_file_location("r_makers", Path(__file__).with_name("r_makers.py"))
r_makers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(r_makers)
make, entry, sets, TWO = r_makers.make, r_makers.entry, r_makers.sets, r_makers.TWO


def model(r: ResourceSet) -> set[tuple[int, str, int]]:
    return {(rank, kind, i) for e in r.entries for rank in e.ranks for kind, got in e.children.kinds() for i in got}


# ---- text and JSON


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_vectors(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["R"])
    r = ResourceSet.parse(case["R"])
    assert r.summary() == case["summary"]
    assert str(r.nodelist) == case["hosts"]
    assert ResourceSet.parse(r.to_json()) == r
    assert ResourceSet.parse(json.dumps(case["R"])) == ResourceSet.parse(json.dumps(case["R"]).encode()) == r
    assert case["R"] == before


def test_rfc20_example_is_printed_as_it_came() -> None:
    obj = ResourceSet.parse(VECTORS[0]["R"]).to_json()
    assert obj == VECTORS[0]["R"]
    assert isinstance(obj["execution"]["starttime"], float)  # C clients are strict: reals


def test_the_empty_r() -> None:
    want = {"R_lite": [], "starttime": 0.0, "expiration": 0.0, "nodelist": [""]}
    assert EMPTY_R.to_json() == {"version": 1, "execution": want}
    assert ResourceSet.parse(EMPTY_R.to_json()) == EMPTY_R
    assert (bool(EMPTY_R), len(EMPTY_R), EMPTY_R.summary(), EMPTY_R.ranks) == (False, 0, "", EMPTY)
    nothing = TWO - TWO
    assert nothing == EMPTY_R
    assert EMPTY_R | TWO == TWO == TWO | EMPTY_R
    assert EMPTY_R.rerank() == EMPTY_R


@settings(max_examples=examples(60))
@given(sets(), st.sampled_from([None, 1, 7]), st.sampled_from([(0.0, 0.0), (5.0, 9.25)]))
def test_parse_print(r: ResourceSet, nslots: int | None, times: tuple[float, float]) -> None:
    r = ResourceSet(r.entries, r.nodelist, r.properties, *times, nslots, {"writer": "x"}, {"a": {}})
    assert ResourceSet.parse(r.to_json()) == r
    assert ResourceSet.parse(json.dumps(r.to_json())) == r


def test_entries_are_merged_and_ordered() -> None:
    r = ResourceSet.parse(make([entry("7"), entry("5", "1"), entry("2-3"), entry("0", "0-1,2-3")], ["h[0,2-3,5,7]"]))
    assert r.summary() == "rank[0,2-3,7]/core[0-3] rank5/core1"
    assert str(r.hosts(ids("5,7"))) == "h[5,7]"


def test_a_rank_in_two_entries_has_the_children_of_both() -> None:
    r = ResourceSet.parse(make([entry("0-1", "0-1"), entry("1", "2-3", gpu="0"), entry("1", "7")]))
    assert r.summary() == "rank0/core[0-1] rank1/core[0-3,7],gpu0"
    with pytest.raises(InvalidValue, match="rank 1 is listed twice with core1"):
        ResourceSet.parse(make([entry("0-1", "0-1"), entry("1", "1-2")]))


def test_further_kinds_of_children_are_kept() -> None:
    r = ResourceSet.parse(make([entry("0", memory="0-7", fpga="1"), entry("1", memory="")], ["a[0-1]"]))
    assert r.summary() == "rank0/core[0-3],fpga1,memory[0-7] rank1/core[0-3]"
    assert (r.count("memory"), r.count("fpga"), r.count("core"), r.count("gpu"), r.count("node")) == (8, 1, 8, 0, 2)
    assert ResourceSet.parse(r.to_json()) == r
    taken = ResourceSet.parse(make([entry("0", "0", memory="0-3")], ["a0"]))
    assert (r - taken).summary() == "rank0/core[1-3],fpga1,memory[4-7] rank1/core[0-3]"
    assert (r & taken).summary() == "rank0/core0,memory[0-3]"
    assert (r - taken) | taken == r


BAD = [
    ("{", "R is not JSON"),
    ("[]", "R must be a JSON object, not an array"),
    (7, "R must be a JSON object, not a number"),
    ('{"version": NaN}', "NaN is not JSON"),
    ("[" * 100_000, "R is nested too deeply"),
    ({"version": 2}, "version must be 1"),
    ({"version": True}, "version must be 1"),
    ({"version": 1}, "^execution is missing, "),
    ({"version": 1, "execution": []}, "execution must be an object, not an array"),
    ({"version": 1, "execution": {}}, "execution has no R_lite"),
    (make("0-3"), "R_lite must be a list of entries, not a string"),
    (make(["0"]), r"R_lite\[0\] must be an object with rank and children, not a string"),
    (make([entry("0"), {"rank": "1"}]), r"R_lite\[1\] has no children"),
    (make([{"children": {}}]), r"R_lite\[0\] has no rank"),
    (make([entry("3,1")]), r"R_lite\[0\]\.rank: .*'1' does not come after 3"),
    (make([entry("01")]), r"R_lite\[0\]\.rank: .*leading zeros"),
    (make([{"rank": 0, "children": {}}]), r"R_lite\[0\]\.rank: idset must be a string"),
    (make([{"rank": "0", "children": []}]), r"R_lite\[0\]: children must be an object"),
    (make([entry("0", "1,")]), r"R_lite\[0\]: children\.core: "),
    (make([entry("0", gpu="x")]), r"R_lite\[0\]: children\.gpu: "),
    (make([entry("0", gpu=["0"])]), r"R_lite\[0\]: children\.gpu: idset must be a string"),
    (make([{"rank": "0", "children": {"": "1"}}]), r"R_lite\[0\]: children: '' is not the name of a kind"),
    (make([entry("0-3")], ["a[0-2]"]), "nodelist names 3 hosts for 4 ranks"),
    (make([entry("0")], ["a", "b", "c"]), "nodelist names more than 1 host for 1 rank"),
    (make([entry("0")], "a"), "nodelist must be a list of hostlists, not a string"),
    (make([entry("0")], ["a[0"]), r"nodelist\[0\]: "),
    (make([entry("0")], ["a"], nslots=0), "nslots must be an integer above 0, not 0"),
    (make([entry("0")], ["a"], nslots=1.5), "nslots must be an integer"),
    (make([entry("0")], ["a"], starttime="1"), "starttime must be a number"),
    (make([entry("0")], ["a"], starttime=-1), "starttime must be within 0"),
    (make([entry("0")], ["a"], expiration=10**400), "expiration must be within 0"),
    (make([entry("0")], ["a"], starttime=5, expiration=5), "expiration 5.0 is not after starttime 5.0"),
    (make([entry("0")], ["a"], properties=["x"]), "properties must be an object"),
    (make([entry("0")], ["a"], properties={"a|b": "0"}), r"property 'a\|b' has \|"),
    (make([entry("0")], ["a"], properties={"": "0"}), "property '' must be a string that is not empty"),
    (make([entry("0")], ["a"], properties={"x": "0-"}), r"properties\['x'\]: idset"),
    (make([entry("0")], ["a"], properties={"x": "0-2,7"}), r"properties\['x'\]: ranks 1-2,7 not among .*rank 0"),
    ({**make([entry("0")], ["a"]), "scheduling": "x"}, "scheduling must be an object, not a string"),
    ({**make([entry("0")], ["a"]), "attributes": [1]}, "attributes must be an object, not an array"),
]


@pytest.mark.parametrize(("obj", "text"), BAD, ids=range(len(BAD)))
def test_refused_by_part(obj: Any, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        ResourceSet.parse(obj)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceeded, match=f"limit of {ID_MAX}"):
        ResourceSet.parse(make([entry("0-4000000000")]))
    with pytest.raises(LimitExceeded, match=f"limit of {ID_MAX}"):
        ResourceSet.build([(ID_MAX + 1, Children(ids("0")))], TWO, 0.0, 0.0, 1)
    deep: dict[str, Any] = {}
    for _ in range(resources.OPAQUE_DEPTH_MAX):
        deep = {"x": deep}
    with pytest.raises(LimitExceeded, match="scheduling is nested deeper than"):
        ResourceSet.parse({**make([]), "scheduling": deep})
    many = {f"kind{at}": "0" for at in range(KINDS_MAX + 1)}
    with pytest.raises(LimitExceeded, match=f"kinds: the limit is {KINDS_MAX}"):
        ResourceSet.parse(make([{"rank": "0", "children": many}]))
    names = {f"p{at}": "0" for at in range(resources.PROPERTIES_MAX + 1)}
    with pytest.raises(LimitExceeded, match=f"limit is {resources.PROPERTIES_MAX}"):
        ResourceSet.parse(make([entry("0")], ["a"], properties=names))
    monkeypatch.setattr(resources, "OPAQUE_MEMBERS_MAX", 2)
    with pytest.raises(LimitExceeded, match="scheduling"):
        ResourceSet.parse({**make([]), "scheduling": {"graph": [1, 2, 3]}})
    monkeypatch.setattr(rlite, "ENTRIES_MAX", 2)
    with pytest.raises(LimitExceeded, match="3 entries: the limit is 2; merge equal targets"):
        ResourceSet.parse(make([entry("0"), entry("1"), entry("2")]))
    monkeypatch.setattr(documents, "TEXT_CHARS_MAX", 8)
    with pytest.raises(LimitExceeded, match="above the limit of 8"):
        ResourceSet.parse('{"version": 1}')


def test_times_are_seconds() -> None:
    assert ResourceSet.parse(make([], expiration=resources.SECONDS_MAX)).expiration_s == resources.SECONDS_MAX
    with pytest.raises(InvalidValue, match="expiration must be within"):
        ResourceSet.parse(make([], expiration=resources.SECONDS_MAX * 1.01))


@pytest.mark.parametrize("targets", [SCAN_MAX, SCAN_MAX + 1])
def test_a_target_is_found_by_scan_and_by_index(targets: int) -> None:
    r = ResourceSet.parse(make([entry(str(rank), f"0-{rank + 1}") for rank in range(targets)]))
    assert [r.children(rank).count("core") for rank in range(targets)] == list(range(2, targets + 2))
    with pytest.raises(InvalidValue, match=f"rank {targets}"):
        r.children(targets)


def test_a_short_text_cannot_eat_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlite, "MASK_BITS_MAX", 4 * 900_000)
    high_ranks = [entry(str(900_000 + i), str(i)) for i in range(5)]
    high_cores = [entry("0", f"{i}-900000") for i in range(5)]
    for different in (high_ranks, high_cores):
        with pytest.raises(LimitExceeded, match="too many different entries"):
            ResourceSet.parse(make(different))


def test_a_long_nodelist_is_not_expanded_to_its_end() -> None:
    with pytest.raises(InvalidValue, match="nodelist names more than 1 host "):
        ResourceSet.parse(make([entry("0")], ["a[0-200000]"] * 1_000_000))


# ---- the laws of sets


@settings(max_examples=examples(120))
@given(sets(), sets())
def test_algebra_is_that_of_sets(a: ResourceSet, b: ResourceSet) -> None:
    before = (a.to_json(), b.to_json())
    assert model(a | b) == model(a) | model(b)
    assert model(a & b) == model(a) & model(b)
    assert model(a - b) == model(a) - model(b)
    assert (a | b).entries == (b | a).entries
    assert (a & b).entries == (b & a).entries
    assert ((a - b) | (a & b)).entries == a.entries
    assert (a.to_json(), b.to_json()) == before
    for result in (a | b, a & b, a - b):
        assert [str(host) for host in result.nodelist] == [f"n{rank}" for rank in result.ranks]
        assert ResourceSet.parse(result.to_json()) == result  # entries are merged, hosts fit, properties stay inside
        assert len({e.children for e in result.entries}) == len(result.entries)


@settings(max_examples=examples(60))
@given(sets(), st.integers(0, 1 << 13))
def test_restrict_and_without(a: ResourceSet, mask: int) -> None:
    ranks = Idset(mask)
    inside, outside = a.restrict(ranks), a.without(ranks)
    assert inside.ranks == a.ranks & ranks
    assert outside.ranks == a.ranks - ranks
    assert inside | outside == a
    assert not inside & outside
    assert ResourceSet.parse(inside.to_json()) == inside


@pytest.mark.parametrize(
    ("left", "right", "union", "both", "rest"),
    [
        ([], [], [], [], []),
        ([entry("0-1")], [entry("1-2")], [entry("0-2")], [entry("1")], [entry("0")]),
        ([entry("0")], [entry("0", "2-5")], [entry("0", "0-5")], [entry("0", "2-3")], [entry("0", "0-1")]),
        # a rank without children is one thing of its own
        ([entry("0-1", "")], [entry("0-1", "")], [entry("0-1", "")], [entry("0-1", "")], []),
        ([entry("0-1", "")], [entry("0", "1")], [entry("0", "1"), entry("1", "")], [], [entry("0-1", "")]),
        ([entry("0", "1")], [entry("0", "")], [entry("0", "1")], [], [entry("0", "1")]),
    ],
)
def test_table(left: Any, right: Any, union: Any, both: Any, rest: Any) -> None:
    a, b = ResourceSet.parse(make(left)), ResourceSet.parse(make(right))
    assert (a | b).to_json()["execution"]["R_lite"] == union
    assert (a & b).to_json()["execution"]["R_lite"] == both
    assert (a - b).to_json()["execution"]["R_lite"] == rest


def test_union_refuses_two_hosts_for_a_rank() -> None:
    a = ResourceSet.parse(make([entry("0-3")], ["a[0-3]"]))
    b = ResourceSet.parse(make([entry("2-4")], ["a2,b3,b4"]))
    c = ResourceSet.parse(make([entry("0-3")], ["x[0-1],a2,x3"]))
    with pytest.raises(InvalidValue, match="hosts of rank 3 differ: a3 on one side, b3 on the other"):
        a | b
    with pytest.raises(InvalidValue, match="hosts of ranks 0-1,3 differ"):
        a | c
    with pytest.raises(InvalidValue, match="no nodelist"):
        a | ResourceSet.parse(make([entry("9")]))


def test_union_interleaves_hosts_and_joins_properties() -> None:
    a = ResourceSet.parse(make([entry("0,2")], ["h[0,2]"], properties={"ssd": "0"}))
    b = ResourceSet.parse(make([entry("1,3")], ["h[1,3]"], properties={"ssd": "3", "big": "1"}, expiration=9.0))
    both = a | b
    assert (str(both.nodelist), both.expiration_s) == ("h[0-3]", 9.0)
    assert both.properties == {"ssd": ids("0,3"), "big": ids("1")}


# ---- looking up


def test_lookups() -> None:
    assert (TWO.children(3), TWO.children(5)) == (Children(ids("0-3"), ids("0")), Children(ids("0-7")))
    assert (TWO.host(0), TWO.host(5), str(TWO.hosts(ids("3-4")))) == ("a0", "b1", "a3,b0")
    assert (TWO.count("core"), TWO.count("gpu"), TWO.count("node"), len(TWO)) == (32, 4, 6, 6)
    for rank in (6, -1):
        with pytest.raises(InvalidValue, match=f"rank {rank} is not among the resources"):
            TWO.children(rank)
        with pytest.raises(InvalidValue, match=f"rank {rank} is not among the resources"):
            TWO.host(rank)
    with pytest.raises(InvalidValue, match="ranks 6,9 not among"):
        TWO.hosts(ids("5-6,9"))
    with pytest.raises(InvalidValue, match="no nodelist"):
        ResourceSet.parse(make([entry("0")])).host(0)


def test_lookup_of_many_different_and_sparse_ranks() -> None:
    r = ResourceSet.parse(make([entry(str(i), f"0-{i + 1}") for i in range(0, 40, 2)], ["n[0-19]"]))
    assert len(r.entries) == 20
    assert r.children(38) == Children(ids("0-39"))
    assert (r.host(38), str(r.hosts(ids("0,36-36".replace("36-36", "36"))))) == ("n19", "n[0,18]")
    with pytest.raises(InvalidValue, match="rank 1 is not among"):
        r.children(1)


def test_several_ranks_on_a_host() -> None:
    r = ResourceSet.parse(make([entry("0-3")], ["here,there,here,here"]))
    assert r.ranks_of("here") == ids("0,2-3")
    assert r.ranks_of("nowhere") == EMPTY
    assert r.ranks_on(["there", "nowhere", "here"]) == (ids("0-3"), ["nowhere"])


@pytest.mark.slow
def test_a_target_of_a_big_machine_is_named_without_a_mask_for_each_host() -> None:
    hosts = 131_072
    execution = {"R_lite": [{"rank": f"0-{hosts - 1}", "children": {"core": "0"}}], "starttime": 0.0, "expiration": 0.0}
    r = ResourceSet.parse({"version": 1, "execution": {**execution, "nodelist": [f"n[0-{hosts - 1}]"]}})
    tracemalloc.start()
    try:
        assert r.ranks_of("n131071") == ids("131071")
        assert tracemalloc.get_traced_memory()[1] < 200 << 20, "as masks they take a gigabyte"
    finally:
        tracemalloc.stop()


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TWO.nslots = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        TWO.entries[0].ranks = EMPTY  # type: ignore[misc]


# ---- variants


def test_rerank() -> None:
    job = ResourceSet.parse(
        {**make([entry("3,7"), entry("5", "0")], ["a", "b", "c"], properties={"x": "5,7"}), "scheduling": {"graph": []}}
    )
    again = job.rerank()
    assert again.summary() == "rank[0,2]/core[0-3] rank1/core0"
    assert (str(again.nodelist), again.properties, again.scheduling) == ("a,b,c", {"x": ids("1-2")}, None)
    assert job.rerank(10).ranks == ids("10-12")
    assert job.scheduling == {"graph": []}
    assert again.rerank() == again


def test_rerank_by_takes_the_hosts_along() -> None:
    moved = TWO.rerank_by({0: 5, 1: 4, 2: 3, 3: 2, 4: 1, 5: 0})
    assert moved.summary() == "rank[0-1]/core[0-7] rank[2-5]/core[0-3],gpu0"
    assert [moved.host(rank) for rank in range(6)] == ["b1", "b0", "a3", "a2", "a1", "a0"]
    assert moved.properties["ssd"] == ids("1,5")
    with pytest.raises(InvalidValue, match="ranks 3-5 without a new rank"):
        TWO.rerank_by({0: 0, 1: 1, 2: 2})
    with pytest.raises(InvalidValue, match="cannot become 1"):
        TWO.rerank_by(dict.fromkeys(range(6), 0))


def test_properties() -> None:
    more = TWO.add_property("big", ids("4")).add_property("ssd", ids("5"))
    assert (more.properties["big"], more.properties["ssd"]) == (ids("4"), ids("0,4-5"))
    assert "big" not in TWO.properties
    assert more.remove_property("big", ids("4")).remove_property("ssd", ids("5")) == TWO
    with pytest.raises(InvalidValue, match="property 'big': ranks 6-7 not among"):
        TWO.add_property("big", ids("5-7"))
    with pytest.raises(InvalidValue, match="property 'a!b' has !"):
        TWO.add_property("a!b", ids("0"))
    with pytest.raises(InvalidValue, match="property 'ssd': ranks 1,5 without it"):
        TWO.remove_property("ssd", ids("0-1,5"))
    assert TWO.job_view().properties == {"ssd": ids("0,4")}


def test_expiration() -> None:
    timed = TWO.with_expiration(1.0, 2.5)
    assert (timed.starttime_s, timed.expiration_s, TWO.expiration_s) == (1.0, 2.5, 0.0)
    with pytest.raises(InvalidValue, match="not after starttime"):
        TWO.with_expiration(2.0, 1.0)


# An R in pieces is the same as the union of them, whenever it is read.


def piece(ranks: Idset, cores: int) -> ResourceSet:
    children = Children(Idset((1 << cores) - 1), amounts=(("memory", cores),))
    hosts = Hostlist(tuple([f"n{rank}-{cores}" for rank in ranks]))
    return ResourceSet((Entry(ranks, children),), hosts, {f"p{cores % 3}": ranks})


STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 12), min_size=1), st.integers(1, 4), st.sets(st.integers(0, 12)), st.booleans())
)


@settings(max_examples=50)
@given(STEPS)
def test_pieces_are_the_whole(steps: list[tuple[set[int], int, set[int], bool]]) -> None:
    """Each step removes some ranks and adds a piece of others; removed ones may come back as something else."""
    growing, plain, kept = GrowingResources(), EMPTY_R, EMPTY
    for added, cores, removed, read in steps:
        kept -= Idset.of(removed)
        new = Idset.of(added) - kept
        if not new:
            continue
        plain = plain.restrict(kept) | piece(new, cores)
        growing.add(piece(new, cores), kept)
        kept |= new
        assert kept <= growing.ranks
        if read:
            assert growing.whole.restrict(kept) == plain
    assert growing.whole.restrict(kept).to_json() == plain.restrict(kept).to_json()


# What we write into R's `scheduling`: parts, beside what others have written there.


FOREIGN = {"graph": {"nodes": []}, "writer": "fluxion"}


def r(ranks: str, scheduling: object = None) -> ResourceSet:
    obj: dict[str, Any] = {
        "version": 1,
        "execution": {"R_lite": [{"rank": ranks, "children": {"core": "0-3"}}]},
    }
    return ResourceSet.parse(obj if scheduling is None else {**obj, "scheduling": scheduling})


def ours(**parts: str) -> object:
    return topology.put_parts(None, {label: ids(ranks) for label, ranks in parts.items()})


def test_parts_are_written_and_read() -> None:
    assert ours(lead="0", work="1-4") == {"writer": "fluxsched", "parts": {"lead": "0", "work": "1-4"}}
    found = r("0-4", ours(work="1-4", lead="0")).parts
    assert list(found.items()) == [("work", ids("1-4")), ("lead", ids("0"))]
    assert r("0-2", ours(lead="0", work="1-4")).parts == {"lead": ids("0"), "work": ids("1-2")}
    assert r("0").parts == r("0", FOREIGN).parts == r("0", {"writer": "fluxsched"}).parts == {}


def test_a_foreign_one_is_left_alone() -> None:
    assert topology.is_foreign({"graph": {}})
    assert not topology.is_foreign(None)
    assert topology.put_parts(FOREIGN, {"lead": ids("0")}) is FOREIGN
    assert topology.join_scheduling(FOREIGN, ours(lead="0")) is FOREIGN
    assert topology.join_scheduling(ours(lead="0"), FOREIGN) == ours(lead="0")


def test_other_keys_of_ours_stay() -> None:
    before = {"writer": "fluxsched", "topology": ["x"], "parts": {"lead": "0"}}
    assert topology.put_parts(before, {}) == {"writer": "fluxsched", "topology": ["x"]}
    assert topology.put_parts(ours(lead="0"), {}) is None


def test_what_an_r_gets_in_addition_is_joined() -> None:
    both = r("0-2", ours(lead="0", work="1-2")) | r("3-4", ours(work="3-4", more="5"))
    assert both.scheduling == ours(lead="0", work="1-4", more="5")
    assert (r("0", ours(lead="0")) | r("1")).scheduling == (r("0") | r("1", ours(lead="0"))).scheduling


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([], "scheduling.parts must be an object of label: idset, not an array"),
        ({"lead": 3}, r"scheduling\.parts\['lead'\]: "),
        ({"lead": "0-1", "work": "1-2"}, r"scheduling\.parts\['work'\]: ranks 1 also belong to another part"),
    ],
)
def test_what_cannot_be_read_is_refused_by_who_reads_it(parts: object, error: str) -> None:
    carried = r("0-4", {"writer": "fluxsched", "parts": parts})
    with pytest.raises(InvalidValue, match=error):
        _ = carried.parts
    assert (carried | r("5", ours(lead="5"))).scheduling


def test_targets_are_named_by_their_hosts_and_by_number_where_these_are_not_known() -> None:
    execution = {"R_lite": [{"rank": "0-4", "children": {"core": "0-3"}}], "nodelist": ["n[0-1],n1,x[1-2]"]}
    resources = ResourceSet.parse({"version": 1, "execution": execution})
    for ranks, text in (
        ("0", "n0"), ("0-2", "n[0-1]"), ("1,3-4", "n1,x[1-2]"), ("4,7", "x2 and rank 7"), ("7-8", "ranks 7-8")
    ):  # fmt: skip
        assert resources.named(Idset.parse(ranks)) == text
    many = ",".join(str(rank) for rank in range(9, NAMES_CHARS_MAX, 2))
    assert resources.named(Idset.parse(many)).endswith(f"... ({len(Idset.parse(many))} targets)")
    assert len(resources.named(Idset.parse(many))) < NAMES_CHARS_MAX + 30
