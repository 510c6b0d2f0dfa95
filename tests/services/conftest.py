"""Fixtures of running instances."""

from __future__ import annotations

from tests.site import children_are_forked, eventually, timed, world
