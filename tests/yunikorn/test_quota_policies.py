"""Plugin `quota` under every policy: no policy overruns it, none is blocked by it, and owners are told by what."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("yaml")

from fluxsched.sched.policies.backfill import Easy
from fluxsched.sched.registry import make
from fluxsched.sim import PluginSite, examine_plugin
from fluxsched.yunikorn.quota import Quota

CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        queues:
          - {name: default, resources: {max: {core: 4}}}
          - {name: physics, resources: {max: {core: 6, node: 3}}}
"""
POLICIES = ("fifo", "easy", "conservative", "fair", "firstfit")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "q.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_overruns_it_and_none_is_blocked_by_it(config: str, policy: str) -> None:
    site = PluginSite(make(policy, {}), [Quota(config)], machine="4x4")
    physics = [site.submit(100.0, {"bank": "physics"}, cores_per_task=2) for _ in range(5)]
    default = [site.submit(100.0, cores_per_task=2) for _ in range(3)]
    site.turn()
    assert set(site.running) == {*physics[:3], *default[:2]}, "those behind go on"
    assert "queue root.physics: 6 core of at most 6 core used, 2 core more requested" in site.why(physics[3])
    assert "plugin 'quota'" in site.why(physics[4])
    assert "queue root.default: 4 core of at most 4" in site.why(default[2])
    site.run(1000.0)
    assert len(site.started) == 8
    assert {start_s - site.started[0][1] for _, start_s in site.started} == {0.0, 100.0}, "as soon as some are free"


def test_what_can_never_run_is_denied(config: str) -> None:
    site = PluginSite(Easy(), [Quota(config)], machine="4x4")
    site.submit(100.0, {"bank": "physics"}, nodes=4)
    site.submit(100.0, {"bank": "chemistry"})
    site.turn()
    assert site.denied == {1, 2}


@pytest.mark.slow
def test_it_keeps_the_laws_for_plugins(config: str) -> None:
    verdicts = examine_plugin(Easy(), lambda: Quota(config), cases=1)
    assert [each for each in verdicts if each.verdict == "broken"] == []
