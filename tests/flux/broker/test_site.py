"""What our scheduler reads of Flux's configuration, and of the jobs that run: jobspecs with their updates."""

from __future__ import annotations

import json

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.flux.bridge import preempted_s, read_site, updated


def test_fair_and_the_time_until_a_job_is_killed_are_read():
    site = read_site({"fair": {"signal": "flow", "banks": {"physics": 3}}, "exec": {"kill-timeout": "10s"}})
    assert site.fair.signal.value == "flow"
    assert site.fair.banks["physics"].weight == 3
    assert site.preempt_timeout_s == 10.0


@pytest.mark.parametrize("table", [None, {}, {"kill-timeout": 3}, {"kill-timeout": "x"}])
def test_what_flux_says_otherwise_or_not_at_all_is_the_usual(table):
    assert read_site({"exec": table}).preempt_timeout_s == 5.0
    assert read_site({}).fair.banks is None


def test_a_bad_table_is_named_at_load():
    with pytest.raises(InvalidValue, match=r"half-life.*signal|signal.*half-life"):
        read_site({"fair": {"signal": "loud", "half-life": -1}})


SPEC = b'{"attributes": {"system": {"duration": 5}}}'


def event(name: str, **context: object) -> str:
    return json.dumps({"timestamp": 1.0, "name": name, "context": context}) + "\n"


def test_a_jobspec_comes_with_the_updates_of_its_eventlog():
    log = event("submit") + event("jobspec-update", **{"attributes.system.bank": "a", "attributes.system.duration": 9})
    log += event("jobspec-update", **{"attributes.system.bank": "b"})
    assert json.loads(updated(SPEC, log.encode())) == {"attributes": {"system": {"duration": 9, "bank": "b"}}}
    assert updated(SPEC, event("submit").encode()) is SPEC


UPDATE = '{"name": "jobspec-update", '


@pytest.mark.parametrize("log", ['"jobspec-update"', f'{UPDATE}"context": 3}}', f'{UPDATE}"context": {{"": 1}}', "{"])
def test_an_eventlog_that_cannot_be_read_says_nothing(log):
    log += '"jobspec-update"'
    assert updated(SPEC, (event("submit") + log).encode()) is SPEC


def test_a_job_that_was_preempted_and_still_holds_something_is_known_by_its_eventlog():
    log = event("submit") + event("exception", type="preempt", severity=0, note="for f3")
    assert preempted_s(log.encode()) == 1.0
    for other in ({"type": "preempt", "severity": 1}, {"type": "cancel", "severity": 0}):
        assert preempted_s((event("submit") + event("exception", **other)).encode()) is None
    assert preempted_s((event("memo", note='"exception"', type="preempt", severity=0)).encode()) is None


@pytest.mark.parametrize("line", ['"exception"', '{"name": "exception"}', '{"name": "exception", "context": 3}'])
def test_an_exception_that_cannot_be_read_says_nothing(line):
    assert preempted_s(line.encode()) is None
