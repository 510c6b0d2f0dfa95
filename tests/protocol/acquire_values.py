"""Ids and an R for the tests of both ends of an acquire stream."""

from __future__ import annotations

from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet


def ids(text: str) -> Idset:
    return Idset.parse(text)


def make_r(ranks: str) -> dict[str, Any]:
    return {"version": 1, "execution": {"R_lite": [{"rank": ranks, "children": {"core": "0-3"}}] if ranks else []}}


def resources(ranks: Idset) -> ResourceSet:
    return ResourceSet.parse(make_r(str(ranks)))
