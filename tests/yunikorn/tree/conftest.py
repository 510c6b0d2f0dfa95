"""Limits that are lower for one test, as in the tests of the scheduler."""

from tests.sched.conftest import lower

__all__ = ["lower"]
