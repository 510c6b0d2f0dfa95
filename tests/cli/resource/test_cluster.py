"""`fluxsched cluster list`: what it says where there is nothing to list."""

from __future__ import annotations

from typing import Any


def test_without_clusters_it_says_how_to_add_one(cli: Any) -> None:
    result = cli("cluster", "list", answers={"cluster.list": {"clusters": []}})
    assert result.out.split() == ["CLUSTER", "KIND", "STATE", "TARGETS", "ONLINE", "WANTED", "SENT", "RUNNING"]
    assert "[[cluster]]" in result.err
    assert cli("cluster", "list", "--json", answers={"cluster.list": {"clusters": []}}).err == ""
