"""A job as people read it: where it ran in a cluster, and advice on what it asked for."""

from __future__ import annotations

from typing import Any

from fluxsched.cli.jobs import FIELDS
from fluxsched.views.jobs import JobRow, efficiency


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


def test_gpus_are_compared_with_what_was_sampled() -> None:
    info = {"id": 1, "ntasks": 1, "ncores": 1, "t_run": 1.8e9, "state": "RUN", "duration": 0.0}
    usage = {"wall_s": 100.0, "user_s": 99.0, "system_s": 0.0, "max_rss_bytes": 1 << 20}
    gpus = {"count": 4, "held_s": 400.0, "busy_s": 100.0, "max_bytes": 3 << 30}
    found = efficiency(info, usage | {"gpus": gpus}, None, 4)
    assert [tuple(line) for line in found.lines[-2:]] == [
        ("GPUs", "4", "1", "25.0"), ("GPU memory", "-", "3G (of one)", ""),
    ]  # fmt: skip
    assert found.advice == ["asked 4 GPUs, used 1: ask for fewer"]
    assert efficiency(info, usage | {"gpus": {**gpus, "busy_s": 300.0}}, None, 4).advice == []
    assert tuple(efficiency(info, usage, None, 4).lines[-1]) == ("GPUs", "4", "not known", "")
    assert tuple(efficiency(info, None, None, 1).lines[-1]) == ("GPUs", "1", "not known", "")
    assert [line.name for line in efficiency(info, usage, None).lines][-1] == "time"


def test_a_job_of_a_moment_is_given_no_advice() -> None:
    info = {
        "id": 1,
        "ntasks": 1,
        "ncores": 8,
        "t_run": 1.8e9,
        "state": "INACTIVE",
        "result": "COMPLETED",
        "duration": 59.0,
    }
    usage = {"wall_s": 0.01, "user_s": 0.0, "system_s": 0.001, "max_rss_bytes": 1 << 20}
    assert efficiency(info, usage, 64 << 30).advice == []
    assert len(efficiency(info | {"duration": 3600.0}, usage | {"wall_s": 60.0}, 64 << 30).advice) == 3
