"""`fluxsched si status`: the tree of queues of a service, with its use and what waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("yaml")

from fluxsched.yunikorn.messages import UpdateConfigurationRequest
from tests.yunikorn.machine.rms import Client, World

TREE = """
partitions:
- name: default
  queues:
  - name: root
    submitacl: "*"
    queues:
    - name: physics
      resources: {guaranteed: {vcore: 4}, max: {vcore: 5}}
      queues: [{name: hot}, {name: cold}]
    - {name: chemistry, resources: {guaranteed: {vcore: 3, memory: 2Gi}, max: {fluxsched.org/share: 10}}}
"""
SHOWN = """\
QUEUE            APPS RUNNING WAITING GUAR% MAX% USED             GUARANTEED         MAX
root                3       4       3         75 vcore=6                             memory=4Gi,vcore=8
  physics           2       3       0   125  100 vcore=5          vcore=4            vcore=5
    hot             1       2       0            vcore=4
    cold            1       1       0            vcore=1
  chemistry         1       1       3    33      vcore=1          memory=2Gi,vcore=3
"""


@pytest.fixture
def rm() -> Client:
    """A site with three applications in three leaves; one of them has more to ask for than there is."""
    rm = Client(World(), "rm", TREE)
    for at in range(4):
        rm.node(f"n{at}", {"vcore": 2000, "memory": 1 << 30, "fluxsched.org/share": 1000})
    for name, queue in (("a", "physics.hot"), ("b", "physics.cold"), ("c", "chemistry")):
        rm.application(name, f"root.{queue}")
    rm.run()
    rm.ask("a", {"vcore": 2000, "fluxsched.org/share": 1}, 2, applicationID="a")
    rm.ask("b", 1000, applicationID="b")
    rm.run()
    rm.ask("c", {"vcore": 1000, "fluxsched.org/share": 5}, applicationID="c").ask("d", 9000, 3, applicationID="c")
    return rm.run()


@pytest.fixture
def status(cli: Any, rm: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*words: str) -> str:
        said = json.dumps(rm.machine.state_dump())
        monkeypatch.setattr("fluxsched.yunikorn.wire.state_dump", lambda address, certificates, rm_id: said)
        done = cli("si", "status", *words)
        assert (done.code, done.err) == (0, "")
        return str(done.out)

    return run


def test_the_tree_is_shown_by_levels_with_its_use_and_what_waits(status: Any) -> None:
    assert status() == SHOWN
    assert json.loads(status("--json"))["rms"][0]["rmID"] == "rm"


def test_columns_are_chosen_and_managers_told_apart_where_there_are_several(status: Any, rm: Client) -> None:
    assert status("-n", "-o", "{path} ?:{rm} {waiting} {of_max}").splitlines()[-1].split() == ["root.chemistry", "3"]
    Client(rm.world, "other")
    lines = status("-n", "-o", "{path} ?:{rm}").splitlines()
    assert (lines[0].split(), lines[-1].split()) == (["root", "rm"], ["root.default", "other"])


def test_a_paused_manager_and_a_draining_queue_are_marked(status: Any, rm: Client) -> None:
    request = UpdateConfigurationRequest(rmID=rm.rm_id, config=TREE.replace("chemistry", "biology"))
    rm.machine.update_configuration(request, rm.world.now_s)
    rm.run()
    assert "draining root.chemistry" in status("-n", "-o", "{state:>8} {path}").splitlines()
    rm.machine.connection_lost(rm.rm_id, rm.world.now_s)
    assert status("-n", "-o", "{path} {state}").splitlines()[0].split() == ["root", "paused"]
