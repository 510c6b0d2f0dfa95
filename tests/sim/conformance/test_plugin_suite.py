"""The suite for plugins finds each broken rule, at its line, and nothing where there is nothing."""

import inspect

import pytest

from fluxsched.sched.hooks import PASS, SKIP, Later
from fluxsched.sched.policies.backfill import Easy, Fifo
from fluxsched.sim import conformance as suite
from fluxsched.sim import plugin_conformance as plugin_site
from fluxsched.sim.harness import RuleBroken
from fluxsched.sim.plugin_conformance import (
    DEPTH_MAX,
    PARTS_MAX,
    RULES,
    SKIPS,
    WAIT_MAX_S,
    PluginJudge,
    PluginSite,
    examine_plugin,
    sizes_in,
)
from tests.generated.share import first
from tests.sim.conformance.plugin_breakers import BREAKERS, Patient


def broken(make, *rules, cases=1):
    found = examine_plugin(Easy(), make, cases=cases, rules=rules or tuple(RULES))
    return {verdict.rule: verdict.finding for verdict in found if verdict.verdict == "broken"}


@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda breaker: breaker.__name__)
def test_a_broken_rule_is_found_at_its_line(breaker):
    rule, case = breaker.__doc__.split(", ")
    found = broken(breaker, case)
    assert rule in found, found
    lines, first = inspect.getsourcelines(breaker)
    marked = [first + at for at, line in enumerate(lines) if line.rstrip().endswith("# here")]
    if marked:
        assert found[rule].line == f"plugin_breakers.py:{marked[0]}", found[rule]


@pytest.mark.parametrize("policy", first([Easy(), Fifo()]), ids=lambda policy: policy.name)
def test_a_plugin_that_keeps_all_rules_is_left_alone(policy):
    verdicts = list(examine_plugin(policy, Patient, cases=1))
    assert {each.rule: each.finding for each in verdicts if each.verdict != "kept"} == {}


def test_the_same_seed_finds_the_same():
    one, other = [broken(BREAKERS[4], "progress", cases=1) for _ in range(2)]
    assert one == other


def test_a_filter_that_is_asked_about_a_skipped_shape_is_noted():
    class Skipping:
        name = "skipping"

        def pre_filter(self, shape, group):
            return SKIP

        def filter(self, shape, kind):
            raise AssertionError

    judge = PluginJudge(Skipping())
    site = PluginSite(Easy(), [judge], [judge])
    site.submit(10.0)
    assert site.turn() == 1
    assert not judge.found
    assert judge.calls["filter"] == 0
    (shape,) = {key[1] for key in judge._said}
    with pytest.raises(AssertionError):
        judge.filter(type("Shape", (), {"number": shape})(), type("Kind", (), {"ranks": site.ranks})())
    assert SKIPS in judge.found


@pytest.mark.plain_only("replaces a function")
def test_unreserve_in_the_wrong_order_is_found(monkeypatch):
    from fluxsched.sched import hooks as calls
    from fluxsched.sched.engine import passes, plugins

    def forwards(chain, done, *others):
        calls.unreserve(chain, [*reversed(done)], *others)

    monkeypatch.setattr(passes, "unreserve", forwards)
    monkeypatch.setattr(plugins, "unreserve", forwards)
    assert "reserved" in broken(Patient, "leaks", cases=1)


def test_wait_max_s_is_the_longest_wait_for_a_permit():
    class PendingJob(Patient):
        def permit(self, job, fit, now_s):
            from fluxsched.sched.hooks import Wait

            return Wait(WAIT_MAX_S + 1)

    assert "permit" in broken(PendingJob, "progress", cases=1)


def test_effects_max_ends_a_turn_that_does_not_end(monkeypatch):
    monkeypatch.setattr(plugin_site, "EFFECTS_MAX", 2)
    site = PluginSite(Easy(), [Patient()])
    for _ in range(3):
        site.submit(10.0, userid=1)
    with pytest.raises(RuleBroken, match="more than 2 effects"):
        site.turn()


def test_parts_max_and_depth_max_bound_what_is_looked_at_for_leaks():
    deep = []
    for _ in range(DEPTH_MAX + 5):
        deep = [deep]
    plugin = Patient()
    plugin.booked = {at: [at] for at in range(PARTS_MAX)}
    assert sizes_in(plugin)["booked"] < 3 * PARTS_MAX
    plugin.booked = {1: deep}
    assert sizes_in(plugin)["booked"] == DEPTH_MAX


class KeepsOff:
    """Keeps some jobs off half of the targets, and off all with `silent`, but gives no reason then."""

    name = "keeps-off"
    READS = ("user",)

    def __init__(self, silent=False):
        self.silent = silent

    def pre_filter(self, shape, group):
        if self.silent:
            return Later("")
        return group.ranks_of("fake[2-3]") if shape.label("user") == 1 else PASS


def test_an_idset_is_a_reason_to_wait_for_a_job_that_fits_on_no_target_of_it():
    rules = ("progress", "policy")
    found = {each.rule: each for each in examine_plugin(Easy(), KeepsOff, rules=rules)}
    assert {found[rule].verdict for rule in rules} == {"kept"}
    found = {each.rule: each for each in examine_plugin(Easy(), lambda: KeepsOff(silent=True), rules=rules)}
    for rule in rules:
        assert (found[rule].verdict, found[rule].cases) == ("broken", 1), "the case that fails is counted"
        assert "a plugin that holds a job back gives a reason" in found[rule].finding.what


class Reluctant(Patient):
    """Says that it holds a job back, once."""

    def look(self, job, rank):
        return Later("not on the first target") if job.jobid == 1 and not rank else PASS


@pytest.mark.parametrize(("law", "make", "verdict"), [
    ("free", Patient, "broken"), ("progress", Reluctant, "kept"), ("progress", BREAKERS[0], "broken"),
])  # fmt: skip
def test_laws_for_policies_are_judged_and_what_a_plugin_holds_back_excuses_waiting(monkeypatch, law, make, verdict):
    ordinary = suite.ordinary

    def with_finding(make_harness, chance):
        ordinary(make_harness, chance)
        raise RuleBroken(law, "made up")

    monkeypatch.setattr(suite, "ordinary", with_finding)
    found = {each.rule: each.verdict for each in examine_plugin(Easy(), make, cases=1, rules=("policy",))}
    assert found["policy"] == verdict
