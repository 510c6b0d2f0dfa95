"""Resources whose time is over are refused, with the time and the remedy."""

from __future__ import annotations

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.resource.state.inventory import Inventory
from fluxsched.runtime.inventory.expiry import unexpired
from fluxsched.runtime.inventory.sources import Sources, fake_resources
from fluxsched.runtime.system.clock import local_moment


def found(expiration_s: float, method: str) -> Sources:
    resources = fake_resources("2x2").with_expiration(0.0, expiration_s)
    return Sources(Inventory(resources, method), {}, real=False, made_up=False, topology=None)


def test_the_enclosing_jobs_time_is_over() -> None:
    """An instance in a job that has ended, or whose R was kept."""
    with pytest.raises(InvalidValue, match=r"the resources of the enclosing job expired at .*start inside a job that"):
        unexpired(found(100.0, "job-info"), None, 100.0)


@pytest.mark.parametrize("expiration_s", [0.0, 100.5])
def test_no_end_or_a_later_one_is_taken(expiration_s: float) -> None:
    sources = found(expiration_s, "configuration")
    assert unexpired(sources, None, 100.0) is sources


def test_an_r_that_was_sent_has_no_file() -> None:
    with pytest.raises(InvalidValue, match=r"^R expired at "):
        unexpired(found(100.0, "configuration"), None, 200.0)


def test_times_beyond_the_calendar() -> None:
    assert local_moment(1e300).endswith(" s since the epoch")
