"""Site files: what is in them, and every fault with its line."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.sim import Ask, TraceJob, run
from fluxsched.sim.site import FAULTS_SHOWN_MAX, OUTAGE, SiteEvent, parse_site, read_site

ALL = Idset.parse("0-3")


def test_steps_in_order_of_time_then_of_lines(four_nodes, tmp_path):
    (tmp_path / "site").write_text("""\
# a comment

{"at": "1h", "do": "maintenance", "targets": "n[0-3]", "for": "30m", "notice": 600}
{"at": 0, "do": "drain", "targets": "0-3", "reason": "why"}
{"at": 0, "do": "undrain", "targets": "0-3"}
{"at": 10, "do": "outage", "targets": "1", "for": 5}
{"at": 12, "do": "assign", "targets": "2", "group": "g", "graceful": true}
""")
    one, two = Idset.of([1]), Idset.of([2])
    assert read_site(tmp_path / "site", four_nodes) == [
        SiteEvent(0, "drain", ALL, "why"),
        SiteEvent(0, "undrain", ALL),
        SiteEvent(10, OUTAGE, one),
        SiteEvent(12, "assign", two, "g", True),
        SiteEvent(15, "online", one),
        SiteEvent(3000, "plan", ALL, "maintenance", in_s=600, lasts_s=1800),
        SiteEvent(3600, OUTAGE, ALL),
        SiteEvent(5400, "online", ALL),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "do is 'None', not one of drain"),
        ('{"at": 1, "do": "explode", "targets": "0"}', "do is 'explode'"),
        ('{"at": 1, "do": [], "targets": "0"}', "do is"),
        ('{"do": "drain"}', "drain needs at, targets"),
        ('{"at": 1, "do": "outage", "targets": "0"}', "outage needs for"),
        ('{"at": 1, "do": "assign", "targets": "0"}', "assign needs group"),
        ('{"at": 1, "do": "drain", "targets": "0", "for": 1}', "drain: unknown key for"),
        ('{"at": -1, "do": "drain", "targets": "0"}', "at: duration"),
        ('{"at": "inf", "do": "drain", "targets": "0"}', "at: give a finite time"),
        ('{"at": 1, "do": "drain", "targets": "7"}', "unknown ranks 7"),
        ('{"at": 1, "do": "drain", "targets": ""}', "no targets"),
        ('{"at": 1, "do": "drain", "targets": "x1"}', "unknown hosts x1"),
        ('{"at": 1, "do": "drain", "targets": 7}', "targets is not a text"),
    ],
)
def test_faults(line, why, four_nodes):
    with pytest.raises(InvalidValue) as caught:
        parse_site(["# fine", line], "f", four_nodes)
    assert str(caught.value).startswith(f"f:2: {why}")


def test_all_faults_at_once_up_to_a_number(four_nodes):
    with pytest.raises(InvalidValue) as caught:
        parse_site(["x"] * 30, "f", four_nodes)
    lines = str(caught.value).splitlines()
    assert len(lines) == FAULTS_SHOWN_MAX + 1
    assert lines[-1] == "f: and 10 more"


def test_the_end_of_an_outage_leaves_targets_offline_in_another(four_nodes):
    lines = (
        '{"at": 10, "do": "outage", "targets": "0-1", "for": 50}',
        '{"at": 20, "do": "outage", "targets": "1-2", "for": 100}',
        '{"at": 60, "do": "maintenance", "targets": "0", "for": 20, "notice": 30}',
        '{"at": 75, "do": "maintenance", "targets": "0,3", "for": 20}',
        '{"at": 120, "do": "outage", "targets": "2", "for": 5}',
    )
    ends = [step for step in parse_site(lines, "site", four_nodes) if step.do == "online"]
    zero_three = Idset.parse("0,3")
    assert ends == [
        SiteEvent(95, "online", zero_three),
        SiteEvent(120, "online", Idset.of([1])),
        SiteEvent(125, "online", Idset.of([2])),
    ]


def test_no_job_starts_on_a_target_whose_second_outage_lasts(four_nodes):
    site = parse_site(
        ['{"at": 0, "do": "outage", "targets": "0-3", "for": 10}',
         '{"at": 5, "do": "outage", "targets": "0-3", "for": 95}'],
        "site", four_nodes,
    )  # fmt: skip
    jobs = run([TraceJob(1, 1.0, 5.0, 5.0, Ask(1))], "easy", resources=four_nodes, site=site).jobs
    assert jobs.start == [100.0]


@pytest.mark.parametrize("requeue", [0, 1, 2])
def test_a_job_that_loses_its_targets_is_tried_again_after_a_pause_that_doubles(four_nodes, requeue):
    site = parse_site(
        ['{"at": 20, "do": "outage", "targets": "0-3", "for": 1}',
         '{"at": 40, "do": "outage", "targets": "0-3", "for": 1}'],
        "site", four_nodes,
    )  # fmt: skip
    trace = [TraceJob(1, 0.0, 50.0, 60.0, Ask(1), requeue=requeue)]
    jobs = run(trace, "easy", resources=four_nodes, site=site, check=True).jobs
    ends = {0: (0, 20, "failed"), 1: (30, 40, "failed"), 2: (60, 110, "completed")}
    assert (jobs.start[0], jobs.end[0], jobs.state[0]) == ends[requeue]
    cut = [(each.start_s, each.end_s, each.again) for each in jobs.preemptions]
    assert cut == {0: [], 1: [(0, 20, True), (30, 40, False)], 2: [(0, 20, True), (30, 40, True)]}[requeue]
