"""What holds in each group and cluster of a job is one text, which can be taken apart."""

from __future__ import annotations

import pytest

from fluxsched.core.reasons import and_in_clusters, apart, in_groups

GROUPS = ["group big: needs 4 nodes; 2 fit now", "group small-2.x: none is free"]
CLUSTERS = ["cluster east is silent since noon: gone", "cluster west: its queue is stopped: no power; wait"]


@pytest.mark.parametrize(
    ("reason", "groups", "clusters"),
    [("", GROUPS, []), ("", GROUPS, CLUSTERS), ("held", [], CLUSTERS), ("held", [], [])],
)
def test_a_reason_is_taken_apart_as_it_was_joined(reason: str, groups: list[str], clusters: list[str]) -> None:
    pairs = [text.removeprefix("group ").partition(": ") for text in groups]
    text = and_in_clusters(reason or in_groups([(name, why) for name, _, why in pairs]), ["", *clusters])
    assert apart(text) == (reason, groups + clusters)
