"""A job as people read it, where it ran in a cluster."""

from __future__ import annotations

from typing import Any

from fluxsched.cli.jobs import FIELDS
from fluxsched.views.jobs import JobRow


def row(**info: Any) -> JobRow:
    return JobRow({"state": "INACTIVE", "result": "COMPLETED", "nodelist": "east:fake0", **info}, 0.0, is_ascii=True)


def test_it_is_shown_where_it_ran_and_not_where_it_was_granted() -> None:
    assert row().reason() == "east:fake0"
    lease = {"cluster": "east", "id": 7}
    assert row(annotations={"lease": lease}).reason() == "east:fake0"
    assert row(annotations={"lease": {**lease, "nodelist": "fake[2-3]"}}).reason() == "east:fake[2-3]"
    assert row(state="RUN", annotations={"lease": lease}).contextual_info() == "waits to start in cluster east"


def test_the_column_of_hosts_has_those_that_a_lease_had() -> None:
    value = FIELDS["nodelist"].value
    assert value(row()) == "east:fake0"
    place = {"cluster": "east", "id": 7, "nodelist": "fake[2-3]"}
    assert value(row(annotations={"lease": place})) == "east:fake[2-3]"
    assert value(row(state="RUN", annotations={"lease": {"cluster": "east"}})) == "east:fake0"


def test_one_that_was_returned_has_not_failed() -> None:
    exception = {"type": "return", "severity": 0, "note": "not started in cluster east within 60 s"}
    returned = row(result="FAILED", exception=exception, requeued_as=58)
    assert (returned.status_abbrev(), returned.word()) == ("RT", "returned")
    assert returned.reason() == "again as f21; not started in cluster east within 60 s"
    assert row(result="FAILED", exception={**exception, "type": "exec"}).status_abbrev() == "F"
