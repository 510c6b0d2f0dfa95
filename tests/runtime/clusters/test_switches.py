"""The switches of a cluster: jobs with a bound on hops run under them, and changes there are followed."""

from __future__ import annotations

from fluxsched.core.resources import ResourceSet

from .conftest import job

LEAVES = """
[topology]
[[topology.switch]]
name = "leaf0"
hosts = "fake[0-1]"
[[topology.switch]]
name = "leaf1"
hosts = "fake[2-3]"
[[topology.switch]]
name = "root"
switches = "leaf[0-1]"
"""
FLAT = """
[topology]
[[topology.switch]]
name = "leaf2"
hosts = "fake[0-3]"
"""


def bound(nodes, max_hops=2):
    return job("sleep", "60", nodes=nodes, exclusive=True, max_hops=max_hops)


async def switches(pair):
    answer = await pair.near.ok("resource.status")
    found = ResourceSet.parse(answer["R"]).topology.switches
    return {name: str(switch.hosts) or ",".join(switch.switches) for name, switch in found.items()}


async def begin(pair, tmp_path):
    path = tmp_path / "east.toml"
    path.write_text(LEAVES)
    pair.there = await pair.world.instance(fake="4x4", config=path, schedulers=("easy",))
    pair.far = pair.world.second(pair.there)
    await pair.open(pair.there.uri, more=FLAT.replace("fake[0-3]", "fake[0-1]").replace("leaf2", "leaf0"))
    return path


async def test_a_bound_on_hops_holds_in_a_cluster_and_its_changes_are_followed(pair, tmp_path):
    path = await begin(pair, tmp_path)
    assert await switches(pair) == {
        "leaf0": "fake[0-1]",
        "east:leaf0": "east:fake[0-1]",
        "east:leaf1": "east:fake[2-3]",
        "east:root": "east:leaf0,east:leaf1",
    }
    never = await pair.wait(await pair.submit(bound(3)))
    assert "hops" in never["errstr"], "it has not four of them under one switch"
    one = await pair.submit(job("sleep", "60", nodes=1, exclusive=True))
    (there,) = await pair.running(pair.far)
    waiting = await pair.submit(bound(2))
    (second, _) = await pair.running(pair.far, 2)
    sent = await pair.far.ok("job-manager.lookup", {"id": second["id"], "keys": ["jobspec"]})
    assert sent["jobspec"]["attributes"]["system"]["fluxsched"] == {"max-hops": 2}
    assert there["nodelist"] == "fake0"
    assert second["nodelist"] == "fake[2-3]", "under one switch there, too"
    path.write_text(FLAT)
    await pair.far.ok("config.reload", {})
    for jobid in (one, waiting):
        await pair.near.ok("job-manager.cancel", {"id": jobid})

    async def is_flat():
        return "east:leaf2" in await switches(pair)

    await pair.until(is_flat)
    assert await pair.submit(bound(3))
    await pair.running(pair.far)
