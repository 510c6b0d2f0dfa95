"""The limits of the command line, each reached."""

from __future__ import annotations

from typing import Any

import pytest
from click.shell_completion import ShellComplete

from fluxsched.cli import base
from fluxsched.cli import options as complete
from fluxsched.cli.config import LONG_VALUE_CHARS_MAX, VALUE_CHARS_MAX
from fluxsched.cli.instance import PAD_BYTES_MAX
from fluxsched.cli.jobspec_options import BEGIN_MAX_S
from fluxsched.cli.main import main
from fluxsched.cli.options import SENT_ID_MAX, UNKNOWN_NAMED_MAX, parse_jobid
from fluxsched.doctor import homes
from fluxsched.errors import LimitExceeded


def test_the_highest_job_id_that_is_sent() -> None:
    assert parse_jobid(str(SENT_ID_MAX)) == SENT_ID_MAX
    with pytest.raises(LimitExceeded, match="job ids are below 2"):
        parse_jobid(str(SENT_ID_MAX + 1))


def test_an_error_names_so_many_unknown_words(cli: Any) -> None:
    words = [f"word{n}" for n in range(UNKNOWN_NAMED_MAX + 1)]
    error = cli("resource", "list", "-s", ",".join(words)).err
    assert (words[-2] in error, words[-1] in error) == (True, False)


def test_the_latest_begin_time(cli: Any) -> None:
    def dry(begin_s: float) -> tuple[int, bool]:
        done = cli("submit", "--dry-run", f"--begin-time={begin_s:.0f}", "true")
        return done.code, "after the year 9999" in done.err

    assert (dry(BEGIN_MAX_S), dry(BEGIN_MAX_S + 1)) == ((0, False), (2, True))


def test_the_largest_padding(cli: Any) -> None:
    assert cli("ping", "--pad", str(PAD_BYTES_MAX + 1)).code == 2


def test_long_values_of_the_configuration_have_lines_of_their_own_up_to_a_limit(cli: Any) -> None:
    def reload(text: str) -> str:
        change = {"key": "resource.path", "old": "/etc/R", "new": text}
        answer = {"changed": [change], "restart": [], "modules": []}
        out: str = cli("config", "reload", answers={"config.reload": answer}).out
        return out

    short = "x" * (VALUE_CHARS_MAX - len('"/etc/R" -> ""'))
    assert reload(short) == f'resource.path: "/etc/R" -> "{short}"\n'
    assert reload(f"{short}x") == f'resource.path: "/etc/R"\n  -> "{short}x"\n'
    shown = reload("x" * LONG_VALUE_CHARS_MAX).splitlines()[-1]
    assert shown == f'  -> "{"x" * (LONG_VALUE_CHARS_MAX - 1)}... (--json has all)'


def test_drains_that_health_checks_leave_behind_are_named(cli: Any) -> None:
    answer = {"changed": [{"key": "health", "old": {"program": "/bin/ok"}}], "restart": [], "modules": []}
    both = [{"user": "kim", "reason": "RMA"}, {"user": "fluxsched:health", "reason": "bad disk"}]
    drains = {
        "1-2": {"user": "fluxsched:health"}, "3": {"user": "kim"}, "5": {"user": "fluxsched:health"},
        "7": {"user": "kim", "reason": "RMA; also: bad disk", "reasons": both},
    }  # fmt: skip
    out = cli("config", "reload", answers={"config.reload": answer, "resource.status": {"drain": drains}}).out
    said = "targets 1-2,5 stay drained by health checks: fluxsched resource undrain 1-2,5"
    more = "targets 7 stay drained by health checks, too: fluxsched resource undrain 7 --only 'bad disk'"
    assert out.splitlines() == ['health: { program = "/bin/ok" } -> not set', said, more]


def test_completion_offers_up_to_a_limit(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "OFFERED_MAX", 2)
    handle = fake({"job-manager.queue-list": {"queues": ["q1", "q2", "q3"]}})
    found = ShellComplete(main, {"obj": lambda uri: handle}, "fluxsched", "_X").get_completions(["jobs", "-q"], "q")
    assert [item.value for item in found] == ["q1", "q2"]


def test_a_path_in_an_error_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PATH_MAX", 3)
    assert base._os_text(FileNotFoundError(2, "No such file", "abcdef")) == "abc: No such file"


def test_doctor_warns_of_a_skewed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert homes._clock().state == "ok"
    monkeypatch.setattr(homes, "SKEW_MAX_S", -1.0)
    assert homes._clock().state == "warn"
