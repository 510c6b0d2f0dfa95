"""`[exec]`: the times from SIGTERM to SIGKILL, in general and for preempted jobs."""

from __future__ import annotations

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.runtime.config.reader import parse_config
from fluxsched.runtime.config.values import KILL_TIMEOUT_S


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("", (KILL_TIMEOUT_S, KILL_TIMEOUT_S)),
        ('kill-timeout = "7s"', (7.0, 7.0)),
        ('preempt-timeout = "2m"', (KILL_TIMEOUT_S, 120.0)),
        ('kill-timeout = "7s"\npreempt-timeout = 0', (7.0, 0.0)),
    ],
)
def test_preempted_jobs_have_the_general_grace_time_unless_said_otherwise(
    text: str, expected_s: tuple[float, float]
) -> None:
    config = parse_config(f"[exec]\n{text}", "site.toml")
    assert (config.kill_timeout_s, config.preempt_timeout_s) == expected_s


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[exec]\n\npreempt-timeout = -1", "site.toml:3: [exec] preempt-timeout: "),
        ('[exec]\npreempt-timeout = "soon"', "site.toml:2: [exec] preempt-timeout: duration 'soon' is not"),
    ],
)
def test_a_wrong_grace_time_is_named_with_its_line(text: str, told: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "site.toml")
    assert told in str(caught.value)
