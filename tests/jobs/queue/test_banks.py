"""The bank of a job is decided when it is submitted, and never again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.sharing import DEFAULT_BANK
from fluxsched.core.text import NAMES_TOLD
from fluxsched.errors import Refused
from fluxsched.jobs.queue.banks import ANY_BANK, Banks
from fluxsched.jobs.queue.queues import QueueConfig


def test_any_bank_counts_where_none_is_configured(new_world: Callable[..., Any], spec: Callable[..., Any]) -> None:
    world = new_world()
    world.submit(1, spec(bank="any"))
    world.submit(2)
    assert [world.job(each).jobspec.sharing.bank for each in (1, 2)] == ["any", None]


def test_the_default_is_put_into_the_jobspec(new_world: Callable[..., Any], spec: Callable[..., Any]) -> None:
    queues = {"a": QueueConfig("a", default_duration_s=60.0)}
    world = new_world(queues, banks=Banks("physics", ("physics", "optics")))
    world.submit(1)
    world.submit(2, spec(bank="optics"))
    (one, two) = [world.job(each).jobspec for each in (1, 2)]
    assert (one.sharing.bank, one.duration_s, one.queue) == ("physics", 60.0, "a")
    assert world.stored[1]["jobspec"]["attributes"]["system"]["bank"] == "physics"
    assert two.sharing.bank == "optics"


def test_a_bank_called_default_needs_no_setting(new_world: Callable[..., Any]) -> None:
    world = new_world(banks=Banks(None, (DEFAULT_BANK, "physics")))
    world.submit(1)
    assert world.job(1).jobspec.sharing.bank is None


@pytest.mark.parametrize(
    ("banks", "named", "told"),
    [
        (Banks(None, ("a", "b")), "c", "bank 'c' does not exist: use one of a, b"),
        (Banks("a", ("a", "b")), "c", "bank 'c' does not exist: use one of a, b"),
        (Banks(None, ("a", "b")), None, "the job names no bank, and there is no default: name one of a, b"),
        (Banks(None, ()), "c", "bank 'c' does not exist: use one of none"),
        (Banks(None, [f"b{at}" for at in range(NAMES_TOLD + 5)]), "c", f"b{NAMES_TOLD - 1} and 5 more"),
    ],
)
def test_an_unknown_bank_is_refused_with_those_that_exist(
    new_world: Callable[..., Any], spec: Callable[..., Any], banks: Banks, named: str | None, told: str
) -> None:
    world = new_world(banks=banks)
    with pytest.raises(Refused, match=told):
        world.submit(1, spec(bank=named))
    assert world.stored == {}


def test_an_accepted_job_stays_accepted(new_world: Callable[..., Any], spec: Callable[..., Any]) -> None:
    world = new_world(banks=Banks(None, ("a",)))
    world.scheduler()
    world.submit(1, spec(bank="a"))
    world.manager.requests.banks = Banks(None, ("b",))
    world.grant(1)
    with pytest.raises(Refused, match="bank 'a' does not exist: use one of b"):
        world.submit(2, spec(bank="a"))
    world.manager.requests.banks = ANY_BANK
    world.submit(2, spec(bank="a"))
