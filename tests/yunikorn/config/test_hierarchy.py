"""What holds between queues: the reader's verdict on random trees is that of the rules, said pair by pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("yaml")

from fluxsched.errors import InvalidParts
from fluxsched.yunikorn.config import read_config

AMOUNTS = st.dictionaries(st.sampled_from("xy"), st.integers(0, 8))


def trees(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    children = st.lists(trees(depth - 1), max_size=3) if depth else st.just([])
    return st.fixed_dictionaries({"guaranteed": AMOUNTS, "max": AMOUNTS, "queues": children})


def written(tree: dict[str, Any], name: str) -> dict[str, Any]:
    resources = {key: {kind: str(amount) for kind, amount in tree[key].items()} for key in ("guaranteed", "max")}
    queues = [written(child, f"q{at}") for at, child in enumerate(tree["queues"])]
    return {"name": name, "resources": resources, "queues": queues}


def walk(tree: dict[str, Any], above: tuple[dict[str, Any], ...] = ()) -> Iterator[tuple[dict[str, Any], ...]]:
    """Each queue with those above it, itself last."""
    path = (*above, tree)
    yield path
    for child in tree["queues"]:
        yield from walk(child, path)


def needed(tree: dict[str, Any], kind: str) -> int:
    """What has to be kept for a queue: its guarantee, or more if those below need it."""
    return max(tree["guaranteed"].get(kind, 0), sum([needed(child, kind) for child in tree["queues"]]))


def holds(tree: dict[str, Any]) -> bool:
    for path in walk(tree):
        queue = path[-1]
        for kind in "xy":
            bounds = [each["max"][kind] for each in path if kind in each["max"]]
            if kind in queue["max"] and queue["max"][kind] > min(bounds):
                return False
            below = sum([needed(child, kind) for child in queue["queues"]])
            if bounds and max(queue["guaranteed"].get(kind, 0), below) > min(bounds):
                return False
            if queue["guaranteed"].get(kind, 0) and below > queue["guaranteed"][kind]:
                return False
    return True


@given(trees(2))
@settings(max_examples=50, deadline=None)
def test_trees_are_read_if_and_only_if_all_fits(tree: dict[str, Any]) -> None:
    text = json.dumps({"partitions": [{"name": "default", "queues": [written(tree, "top")]}]})
    is_read = False
    with suppress(InvalidParts):
        read_config(text)
        is_read = True
    assert is_read == holds(tree)
