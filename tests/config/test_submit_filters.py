"""Submit filters by name, their configuration, and the check of a file that names some."""

from __future__ import annotations

import errno
import math

import pytest

from fluxsched.config import submit_filters
from fluxsched.config.reader import parse_config, read_site
from fluxsched.config.submit_filters import FilterAnswer, SubmittedJob, check_filter, make_filter, verdict
from fluxsched.config.values import FILTERS_MAX
from fluxsched.errors import InvalidValue, Refused

GOOD = """
from fluxsched.sched.loading import Option

class Filter:
    name = "good"
    OPTIONS = {"minutes": Option(1.0, parse=float, help="minutes")}

    def __init__(self, minutes):
        self.minutes = minutes

    def filter(self, job):
        return None
"""


def test_a_filter_is_made_with_its_options(tmp_path):
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    assert make_filter(f"{path}:minutes=3").minutes == 3.0
    with pytest.raises(InvalidValue, match="submit filter 'good': no option 'hours'; it has minutes"):
        make_filter(f"{path}:hours=3")
    with pytest.raises(InvalidValue, match="no submit filter 'unknown': there are none; a file is named with its"):
        check_filter("unknown")


def test_the_configuration_is_checked(tmp_path):
    def faults(text):
        with pytest.raises(InvalidValue) as caught:
            parse_config(f"[ingest]\n{text}\n", str(tmp_path / "site.toml"))
        return str(caught.value)

    assert "timeout: 0.01 s is not within 0.1 s and infinity" in faults('timeout = "10ms"')
    assert "'drop' is not one of refuse, pass" in faults('without-filters = "drop"')
    assert "unknown key 'filter'" in faults('filter = ["a.py"]')
    many = ", ".join(f'"{name}.py"' for name in range(FILTERS_MAX + 1))
    assert "has 17 filters, the maximum is 16" in faults(f"filters = [{many}]")
    read = parse_config('[ingest]\nfilters = ["a.py:b=1"]\n', str(tmp_path / "site.toml")).ingest
    assert read.filters == (f"{tmp_path}/a.py:b=1",)
    assert not read.passes_without
    assert math.isfinite(read.timeout_s)


def test_a_check_names_absent_and_with_try_unusable_filters(tmp_path):
    path, rules = tmp_path / "site.toml", tmp_path / "rules.py"
    path.write_text('[ingest]\nfilters = ["rules.py"]\n')

    def faults(*, trying):
        return [fault.text for fault in read_site(path, trying=trying)[1]]

    assert faults(trying=False) == [f"[ingest] filters: there is no file {rules}"]
    rules.write_text("1 / 0\n")
    assert faults(trying=False) == []
    (found,) = faults(trying=True)
    assert found == "[ingest] filters: a submit filter raised ZeroDivisionError: division by zero (rules.py:1)"
    rules.write_text(GOOD)
    assert faults(trying=True) == []


class Bank:
    name = "bank"

    def filter(self, job):
        return {**job.jobspec, "bank": "a"}


class Strict:
    name = "strict"

    def filter(self, job):
        if "bank" not in job.jobspec:
            raise Refused("no bank", errno.EPERM)


def test_each_filter_is_given_what_the_one_before_it_has_made():
    job = SubmittedJob({}, 1, 16)
    assert verdict([Bank(), Strict()], job) == FilterAnswer({"bank": "a"})
    assert verdict([Strict(), Bank()], job) == FilterAnswer(None, "no bank", errno.EPERM)


def test_a_frame_is_bounded(monkeypatch, tmp_path):
    monkeypatch.setattr(submit_filters, "FRAME_BYTES_MAX", 10)
    path = tmp_path / "good.py"
    path.write_text(GOOD.replace("return None", "return job.jobspec"))
    process = submit_filters.FilterProcess([str(path)], tmp_path / "log", 60.0)
    with pytest.raises(submit_filters.FilterFault, match="is above the maximum of 10"):
        process.ask([SubmittedJob({"a": "b" * 100}, 1, 16)])
