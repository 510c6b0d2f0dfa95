"""Module options: what is wrong is said at load, with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.flux.handle import QUEUE_DEPTH_MAX, parse_options


def test_the_name_decides_without_options():
    assert parse_options([], "sched-fluxsched").policy.name == "easy"
    assert parse_options([], "sched-simple").policy.name == "fifo"
    assert parse_options([], "sched-fluxsched").queue_depth is None


@pytest.mark.parametrize(
    ("words", "depth"),
    [
        (["queue-depth=8"], 8), (["queue-depth=unlimited"], None), (["mode=unlimited"], None),
        (["mode=limited=8"], 8), ([f"queue-depth={QUEUE_DEPTH_MAX}"], QUEUE_DEPTH_MAX),
    ],
)  # fmt: skip
def test_queue_depth_in_its_two_forms(words, depth):
    assert parse_options(words, "x").queue_depth == depth


def test_what_no_longer_fits_is_denied_as_by_fluxs_own_unless_told_to_wait():
    assert parse_options([], "sched-fluxsched").unsatisfiable == "deny"
    assert parse_options(["unsatisfiable=wait"], "x").unsatisfiable == "wait"
    with pytest.raises(InvalidValue, match="unsatisfiable='maybe' is not one of wait, deny"):
        parse_options(["unsatisfiable=maybe"], "x")


def test_the_rest_is_the_policys():
    options = parse_options(["policy=firstfit", "placement=best-fit", "log-level=DEBUG", "test-hello-nopartial"], "x")
    assert options.policy.name == "firstfit"
    assert options.log_level == 7
    assert not options.partial_ok
    assert parse_options(["policy=fifo:placement=best-fit"], "x").policy.name == "fifo"


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("queue-depth=bogus", "queue-depth='bogus'"), ("queue-depth=0", "1 to"), ("queue-depth=-1", "1 to"),
        (f"queue-depth={QUEUE_DEPTH_MAX + 1}", "1 to"), ("mode=foobar", "mode='foobar'"),
        ("mode=limited=-1", "mode=limited='-1'"),
        ("mode=limited", "limited=N"), ("mode=limited=unlimited", "limited=N"), ("log-level=bogus", "not one of emerg"),
        ("log_level=debug", "unknown option 'log_level'"), ("policy=nope", "no policy 'nope'"),
        ("verbose", "option=value"), ("policy=fifo:x", "no option"),
        ("placement=middle", "worst-fit"), ("forecast=maybe", "neither yes nor no"),
        ("policy=", "names no policy"), ("queue-depth=²", "1 to"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(word, named):
    with pytest.raises(InvalidValue, match=named):
        parse_options([word], "sched-fluxsched")


@pytest.mark.parametrize(
    "words",
    [
        ["policy=fifo", "policy=fifo"], ["queue-depth=8", "mode=unlimited"],
        ["policy=fifo:placement=best-fit", "placement=best-fit"],
    ],
)  # fmt: skip
def test_nothing_is_said_twice(words):
    with pytest.raises(InvalidValue):
        parse_options(words, "x")


NIGHT = Path(__file__).parents[3] / "examples" / "plugin_night.py"


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        (["policy=easy"], "policy=easy"),
        (["policy=easy:placement=best-fit", "order=sjf"], "policy=easy:placement=best-fit,order=sjf"),
        (["policy=easy;debug=fifo", "order=sjf"], "policy=easy:order=sjf;debug=fifo"),
        (["placement=best-fit", f"plugins={NIGHT}"], f"policy=easy:placement=best-fit plugins={NIGHT}"),
    ],
)  # fmt: skip
def test_the_ready_line_names_all_that_decides(hand, words, decides):
    hand.begin(*words)
    assert hand.take("log")[-1][1].startswith(f"ready: queue-depth=unlimited log-level=info {decides} Rv1 ")


def test_a_queue_may_have_a_policy_of_its_own():
    options = parse_options(["policy=easy;debug=firstfit:placement=best-fit", "placement=best-fit"], "x")
    assert options.policy.name == "easy"
    assert {queue: policy.name for queue, policy in options.policies.items()} == {"debug": "firstfit"}
    with pytest.raises(InvalidValue, match="'debug' is not QUEUE=POLICY"):
        parse_options(["policy=easy;debug"], "x")
