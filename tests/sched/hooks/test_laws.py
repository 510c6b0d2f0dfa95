"""What holds whatever plugins say: nothing leaks, a fault concerns one job, plans keep, delegation is exact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.sched.decisions import Granted, PluginFailed
from fluxsched.sched.hooks import LIMITS, PASS, SKIP, Gate, Later, Never, Wait
from tests.sched.site import Bench, limit, make_r, scheduler_of, spec

(
    ANNOTATION_KEYS_MAX,
    FAULTS_MAX,
    LABEL_CHARS_MAX,
    PLUGINS_MAX,
    READS_MAX,
    RETRY_S,
    ROUNDS_MAX,
    SHAPES_MAX,
    SORT_ITEMS_MAX,
    VERDICTS_MAX,
    WHY_CHARS_MAX,
) = limit(
    "ANNOTATION_KEYS_MAX",
    "FAULTS_MAX",
    "LABEL_CHARS_MAX",
    "PLUGINS_MAX",
    "READS_MAX",
    "RETRY_S",
    "ROUNDS_MAX",
    "SHAPES_MAX",
    "SORT_ITEMS_MAX",
    "VERDICTS_MAX",
    "WHY_CHARS_MAX",
)

POLICIES = ["fifo", "firstfit", "easy", "conservative", "hybrid"]
FAILING = ("pre_enqueue", "queue_sort", "pre_filter", "filter", "pre_score", "score", "look", "reserve", "permit",
           "pre_bind", "bind")  # fmt: skip


def bad(*_):
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("point", FAILING)
def test_after_an_exception_that_job_waits_and_all_else_goes_on(plugin, point):
    bad_one = plugin("bad", reads=("name",), **{point: bad, **({"score": 0} if point == "pre_score" else {})})
    good = plugin("good", reserve=PASS, unreserve=None)
    bench = Bench("firstfit", queues={"mine": "default"}, policies={"mine": "fifo"}, plugins={"mine": [good, bad_one]})
    bench.grow(make_r("0-3", 4))
    bench.submit(1, queue="mine")
    bench.submit(2, spec())
    found = bench.run()
    assert [each.jobid for each in found if isinstance(each, Granted)] == [2]
    notes = [each.note for each in found if isinstance(each, PluginFailed)]
    assert "plugin 'bad' failed at conftest.py:" in notes[0]
    assert "ZeroDivisionError: mine" in notes[0]
    assert "plugin 'bad' failed at conftest.py:" in bench.why(1)
    assert good.count("reserve") == good.count("unreserve")
    setattr(bad_one, point, PASS)
    bench.now_s += RETRY_S
    assert bench.scheduler.next_notice_s <= bench.now_s


@pytest.mark.parametrize("point", ["unreserve", "post_bind", "on_free"])
def test_a_fault_where_nothing_is_asked_is_told_and_the_rest_goes_on(plugin, point):
    points = {"reserve": PASS, "unreserve": None, "post_bind": None, "on_free": None}
    plugins = [plugin("a", **points), plugin("bad", **{**points, point: bad}), plugin("c", **points)]
    last = plugin("last", reserve=Later("no") if point == "unreserve" else PASS)
    bench = Bench("fifo", plugins={"": [*plugins, last]})
    bench.grow(make_r("0", 4))
    bench.submit(1, spec())
    found = bench.run()
    if point == "on_free":
        bench.free(1)
        found = bench.run()
    assert any(isinstance(each, PluginFailed) for each in found)
    assert [each.count(point) for each in plugins] == [1, 1, 1]


def test_a_wrong_answer_is_a_fault(plugin):
    for point, answer in (
        ("pre_enqueue", Later("x")), ("pre_enqueue", Gate("x", on=("never",))), ("pre_filter", True), ("filter", SKIP),
        ("look", Wait(1.0)), ("reserve", None), ("permit", Wait(0.0)), ("pre_bind", Never("x")),
        ("bind", dict.fromkeys(map(str, range(ANNOTATION_KEYS_MAX + 1)))), ("bind", {1: 2}),
        ("queue_sort", (1,) * (SORT_ITEMS_MAX + 1)), ("pre_enqueue", Gate("x", on=5)),
        ("pre_enqueue", Gate("x", at_s="22:00")), ("pre_filter", Later("x", "soon")),
        ("filter", Later("x", 10**400)), ("reserve", Later("x", "soon")),
        ("permit", Wait("1h")), ("score", "best"),
    ):  # fmt: skip
        bench = Bench("fifo", plugins={"": [plugin(**{point: answer})]})
        bench.grow(make_r("0", 4))
        bench.submit(1, spec())
        found = bench.run()
        assert f"plugin 'p': {point} answered" in bench.why(1)
        assert [type(each) for each in found if isinstance(each, (PluginFailed, Granted))] == [PluginFailed]
    long = Bench("fifo", plugins={"": [plugin(reserve=Later("x" * 2 * WHY_CHARS_MAX))]})
    long.grow(make_r("0", 4))
    long.submit(1, spec())
    long.run()
    assert len(long.why(1)) < WHY_CHARS_MAX + 20


def test_reasons_and_events_may_be_of_any_kind(plugin):
    odd = KeyError("x")
    for point, answer in (
        ("pre_enqueue", Gate(odd, on=["free"])), ("pre_filter", Later(odd)), ("filter", Never(odd)),
        ("reserve", Later(odd)), ("permit", Wait(1, odd)),
    ):  # fmt: skip
        bench = Bench("fifo", plugins={"": [plugin(**{point: answer})]})
        bench.grow(make_r("0", 4))
        bench.submit(1, cores=3)
        assert not [each for each in bench.run() if isinstance(each, (PluginFailed, Granted))]
        assert point == "filter" or "plugin 'p': 'x'" in bench.why(1)


@pytest.mark.parametrize("generation", ["new", -1, property(bad)])
def test_a_generation_that_is_none_is_a_fault(generation):
    class Odd:
        name = "odd"

        def filter(self, shape, kind):
            return PASS

    Odd.generation = generation
    bench = Bench("fifo", plugins={"": [Odd()]})
    bench.grow(make_r("0", 4))
    bench.submit(1, spec())
    found = bench.run()
    assert [type(each) for each in found if isinstance(each, (PluginFailed, Granted))] == [PluginFailed]
    assert "generation should be a number" in bench.why(1)


def test_faults_are_counted_beyond_a_limit(plugin):
    bench = Bench("firstfit", plugins={"": [plugin(pre_enqueue=bad)]})
    bench.grow(make_r("0", 4))
    for jobid in range(FAULTS_MAX + 5):
        bench.submit(jobid, spec())
    notes = [each.note for each in bench.run() if isinstance(each, PluginFailed)]
    assert len(notes) == FAULTS_MAX + 1
    assert notes[-1] == "5 more faults of plugins"


def test_plugins_that_never_come_to_an_end_are_asked_later(plugin):
    """Each of them undoes what the other waits for."""
    turn = [0]

    def permit(job, fit, now_s):
        turn[0] += 1
        return Later("no") if turn[0] % 2 == 0 else Wait(60.0)

    asked = plugin(permit=permit)
    bench = Bench("firstfit", plugins={"": [asked]})
    bench.grow(make_r("0", 4))
    for jobid in (1, 2):
        bench.submit(jobid, spec())
    bench.run()
    assert asked.count("permit") <= 8 * ROUNDS_MAX
    assert bench.scheduler.next_notice_s < 200.0


# ---- plans


@pytest.mark.parametrize("policy", ["easy", "conservative", "hybrid"])
def test_a_job_has_a_reservation_only_where_its_plugins_let_it(plugin, policy):
    """The head may only run on ranks 2 and 3, which are busy until 200: all of 0 and 1 is free for others."""
    only = plugin(
        reads=("name",), pre_filter=lambda shape, group: Idset.parse("2-3") if shape.label("name") == "head" else PASS
    )
    bench = Bench(policy, plugins={"": [only]})
    bench.grow(make_r("0-3", 4))
    bench.submit(1, nodes=2, exclusive=True, duration=100.0, constraint={"ranks": ["2-3"]})
    bench.run()
    bench.submit(2, nodes=1, exclusive=True, duration=50.0, name="head")
    bench.submit(3, nodes=2, exclusive=True, duration=1000.0)
    grants = {each.jobid: each for each in bench.run() if isinstance(each, Granted)}
    assert set(grants) == {3}
    assert {part.rank for part in grants[3].fit.parts} == {0, 1}
    (kept,) = bench.scheduler.report.planned()
    assert (kept.jobid, kept.start_s) == (2, 200.0)
    assert kept.fit is not None
    assert {part.rank for part in kept.fit.parts} <= {2, 3}
    bench.now_s = 200.0
    bench.free(1)
    assert [each.jobid for each in bench.run() if isinstance(each, Granted)] == [2]


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("point", ["pre_filter", "reserve", "pre_enqueue"])
def test_who_is_held_back_breaks_no_reservation(plugin, policy, point):
    """Job 2 is held back by a plugin, job 3 has a reservation at 200, and job 4 may not delay it."""
    no = Gate("no") if point == "pre_enqueue" else Later("no")
    says = plugin(reads=("name",), **{point: lambda about, *_: no if about.label("name") == "held" else PASS})
    bench = Bench(policy, plugins={"": [says]})
    bench.grow(make_r("0-1", 4))
    bench.submit(1, nodes=1, exclusive=True, duration=100.0)
    bench.run()
    bench.submit(2, nodes=1, duration=10.0, name="held")
    bench.submit(3, nodes=2, exclusive=True, duration=10.0)
    bench.submit(4, nodes=1, exclusive=True, duration=500.0)
    bench.submit(5, nodes=1, exclusive=True, duration=50.0)
    assert 4 not in [each.jobid for each in bench.run() if isinstance(each, Granted)]
    if point != "reserve":  # else job 2, whose turn it is, keeps its place
        assert {kept.jobid: kept.start_s for kept in bench.scheduler.report.planned() if kept.start_s < 1e9}[3] == 200.0


# ---- delegation

JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1.0, 5.0, 20.0])),
    min_size=1, max_size=14,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@given(jobs=JOBS)
@settings(max_examples=15)
def test_whom_every_plugin_skips_the_policy_decides_as_without_plugins(policy, jobs):
    class Skips:
        name = "skips"
        READS = ("user", "name")

        def pre_filter(self, shape, group):
            return SKIP

        filter = score = look = reserve = permit = pre_bind = bind = bad

    class Passes:
        name = "passes"

        def filter(self, shape, kind):
            return PASS

        def reserve(self, job, fit):
            return PASS

    def schedule(plugins):
        scheduler, found, now_s = scheduler_of(policy, plugins={"": plugins}), [], 100.0
        resources = make_r("0-4", 4)
        scheduler.grown("default", resources, resources.ranks, Idset())
        ends = {}
        for jobid, (after, nodes, cores, limit_s) in enumerate(jobs):
            now_s += after
            scheduler.alloc(jobid, 16, 1, now_s, spec(nodes=nodes, cores=cores, duration=limit_s), now_s)
            for end_s in sorted([end_s for end_s in ends if end_s <= now_s]):
                for ended in ends.pop(end_s):
                    scheduler.free_all(ended, now_s)
            for effect in scheduler.schedule(now_s):
                if isinstance(effect, Granted):
                    found.append((now_s, effect.jobid, effect.fit.blocks))
                    ends.setdefault(effect.expiration_s, []).append(effect.jobid)
            scheduler.check()
        return found

    alone = schedule([])
    assert schedule([Skips()]) == alone
    assert schedule([Passes()]) == alone


# ---- settings


def test_what_is_wrong_with_plugins_is_said_at_once(plugin):
    def with_(*plugins, queue=""):
        return scheduler_of("fifo", queues={"mine": "default"}, plugins={queue: plugins})

    class Nothing:
        name = "nothing"

    class Nameless:
        def look(self, job, rank): ...

    for fault, plugins in (
        ("has none of the methods", [Nothing()]),
        ("name is None", [Nameless()]),
        ("has the name of the site's own limits", [plugin(LIMITS)]),
        ("is given twice", [plugin("a"), plugin("a")]),
        ("both have queue_sort", [plugin("a", queue_sort=(1,)), plugin("b", queue_sort=(1,))]),
        ("READS names 'colour'", [plugin("a", reads=("colour",))]),
        ("not sent: name a KEY", [plugin("a", reads=("attributes.system.environment",))]),
        ("not sent: name a KEY", [plugin("a", reads=("attributes.system.",))]),
        ("should be a tuple", [plugin("a", reads="user")]),
    ):
        with pytest.raises(InvalidValue, match=fault):
            with_(*plugins)
    with pytest.raises(InvalidValue, match="shares its order"):
        with_(plugin("a", queue_sort=(1,)), queue="mine")
    with pytest.raises(InvalidValue, match=f"the limit is {PLUGINS_MAX}"):
        with_(*[plugin(f"p{n}") for n in range(PLUGINS_MAX + 1)])
    with pytest.raises(LimitExceeded, match=f"the limit is {READS_MAX}"):
        with_(plugin("a", reads=tuple(f"attributes.system.k{n}" for n in range(READS_MAX + 1))))


def test_labels_make_shapes_and_are_what_plugins_read(plugin):
    seen = {}
    names = ("user", "bank", "queue", "name", "attributes.system.x.y", "attributes.system.z", "attributes.system.none")

    def pre_filter(shape, group):
        seen.update({name: shape.label(name) for name in names})
        return PASS

    asked = plugin(reads=names, pre_filter=pre_filter)
    bench = Bench("fifo", queues={"mine": "default"}, plugins={"": [asked]})
    bench.grow(make_r("0", 4))
    job = spec(queue="mine")
    job["attributes"]["system"] |= {"bank": "b", "x": {"y": [1, 2]}, "z": "z" * 2 * LABEL_CHARS_MAX}
    job["attributes"]["system"]["job"] = {"name": "n"}
    bench.submit(1, job)
    bench.submit(2, job)
    bench.run()
    assert asked.count("pre_filter") == 1
    assert seen == {
        "user": 1000, "bank": "b", "queue": "mine", "name": "n", "attributes.system.x.y": "[1, 2]",
        "attributes.system.z": "z" * LABEL_CHARS_MAX, "attributes.system.none": None,
    }  # fmt: skip


def test_verdicts_are_forgotten_with_their_jobs(plugin, lower):
    assert VERDICTS_MAX <= SHAPES_MAX
    lower(VERDICTS_MAX=4)
    asked = plugin(reads=("name",), pre_filter=lambda shape, group: Idset.parse("0"))
    asked.generation = 0
    bench = Bench("firstfit", plugins={"": [asked]})
    bench.grow(make_r("0-1", 32))
    for jobid in range(10):
        bench.submit(jobid, name=str(jobid))
    bench.run()
    asked.generation = 1
    bench.run()
    group = bench.scheduler.group("default")
    assert len(group.pool.narrowed) == 0
    bench.submit(11, spec())
    assert len(bench.run()) == 1


def test_permits_are_answered_only_where_they_are_waited_for(plugin):
    bench = Bench("fifo", plugins={"": [plugin("door", permit=Wait(9.0)), plugin("gate", permit=Wait(5.0))]})
    bench.grow(make_r("0", 4))
    bench.submit(1, spec())
    bench.run()
    assert bench.scheduler.next_notice_s == 105.0
    with pytest.raises(Refused, match="does not wait for a permit"):
        bench.scheduler.permit(2, "door", True, "", 100.0)
    with pytest.raises(Refused, match="but for door, gate"):
        bench.scheduler.permit(1, "other", True, "", 100.0)
    assert bench.scheduler.permit(1, "door", True, "", 100.0) == []
    assert len(bench.did(bench.scheduler.permit(1, "gate", True, "", 100.0))) == 1
    with pytest.raises(Refused, match="of a plugin"):
        scheduler_of("fifo").permit(1, "door", True, "", 100.0)


def test_adopted_jobs_are_told_of(plugin):
    told = []
    counts = plugin(
        reads=("user",), post_bind=lambda job, fit: told.append((job, fit)), on_free=lambda job, fit: told.append(job)
    )
    bench = Bench("fifo", plugins={"": [counts]})
    bench.scheduler.hello(7, 16, 1000, 1.0, make_r("0", 2), jobspec=spec(cores=2, duration=5.0))
    bench.scheduler.hello(8, 16, 1001, 1.0, make_r("1", 2))
    bench.grow(make_r("0-1", 4))
    (job, fit), (other, _) = told
    assert (job.jobid, job.adopted, job.label("user"), job.request.cores) == (7, True, 1000, 2)
    assert {part.rank: part.cores for part in fit.parts} == {0: 0b11}
    assert (other.jobid, other.adopted, other.label("user")) == (8, True, None)
    bench.scheduler.free_all(7, 200.0)
    assert told[2].jobid == 7
