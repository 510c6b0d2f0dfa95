"""Policies and plugins under test are looked at in processes that are forked from what has imported most of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluxsched.cli import policy_check
from fluxsched.config import policies
from fluxsched.system import processes
from tests.prepared.caller import prepared
from tests.prepared.children import forking


@pytest.fixture(autouse=True, scope="package")
def children_are_forked() -> Iterator[None]:
    starts = [module.__name__ for module in (policy_check, policies)]
    with forking(prepared().child, processes, starts=starts):
        yield
