"""Several queues over one group, each with its own policy: seen in the order of starts, and in what commands show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CONFIG = """\
[policy.jobspec.defaults.system]
queue = "batch"
[queues.batch]
[queues.batch.policy.limits]
duration = "1h"
[queues.debug]
policy = "firstfit:order=sjf"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG)
    return path


async def started(handle: Any, jobs: dict[str, int]) -> list[str]:
    """The names of jobs in the order of their starts."""
    for jobid in jobs.values():
        await handle.wait(jobid)
    rows = (await handle.rpc("job-manager.list", {"ids": list(jobs.values())}))["jobs"]
    return [row["name"] for row in sorted(rows, key=lambda row: row["t_run"])]


async def test_two_queues_are_ordered_by_their_own_policies(world: Any, timed: Any, config: Path) -> None:
    instance = await world.instance(fake="1x2", config=config, schedulers=("fifo",))
    handle = await world.client(instance)
    blocker = await handle.submit(timed("1h", duration_s=3600.0, name="blocker"))
    limits_s = {"first": 1200.0, "second": 300.0}
    jobs = {
        f"{queue} {name}": await handle.submit(
            timed("5ms", ntasks=2, duration_s=limit_s, queue=queue, name=f"{queue} {name}")
        )
        for queue in ("batch", "debug")
        for name, limit_s in limits_s.items()
    }
    small = {
        queue: await handle.submit(timed(duration_s=60.0, queue=queue, name=f"{queue} small"))
        for queue in ("batch", "debug")
    }
    await handle.wait(small["debug"])  # overtakes in the queue where that is the policy
    [waiting] = (await handle.rpc("job-manager.list", {"ids": [small["batch"]]}))["jobs"]
    assert (waiting["state"], "t_run" in waiting) == ("SCHED", False)
    await handle.cancel(blocker)
    jobs["batch small"] = small["batch"]
    assert await started(handle, jobs) == ["debug second", "debug first", "batch first", "batch second", "batch small"]


def test_commands_show_the_policy_of_each_queue(daemon: Any, config: Path) -> None:
    here = daemon("--fake", "1x2", "--config", config, "--scheduler", "easy")
    assert [line.split() for line in here("queue", "list").out.splitlines()] == [
        ["QUEUE", "EN", "ST", "GROUP", "POLICY", "TLIMIT"],
        ["batch", "✔", "✔", "default", "easy", "1h"],
        ["debug", "✔", "✔", "default", "firstfit:order=sjf"],
    ]
    assert "debug: Scheduling policy is firstfit:order=sjf\n" in here("queue", "status").out
    here("queue", "stop", "--all")
    here.submit("-q", "debug", "true")
    stats = here("module", "stats", "sched-easy").json
    assert stats["groups"]["default"]["queues"] == {"debug": {"policy": "firstfit", "waiting": 0, "planned": 0}}
    assert "easy;debug=firstfit:order=sjf" in here("module", "list", "-l").out
    here("module", "remove", "sched-easy")
    assert "Scheduling policy" not in here("queue", "status").out
    refused = here("module", "load", "fifo;debgu=easy", status=1)
    assert refused.err == (
        "fluxsched: module load: queue 'debgu' has a policy in 'fifo;debgu=easy', but is not configured: "
        "there are batch, debug\n"
    )
    here("module", "load", "conservative;batch=easy", "compress")
    assert {row["name"]: row["policy"] for row in here("queue", "list", "--json").json["queues"]} == {
        "batch": "easy", "debug": "firstfit:order=sjf"
    }  # fmt: skip
    assert here("module", "stats", "sched-conservative").json["policy"] == "conservative"


@pytest.mark.parametrize(
    ("text", "option", "want"),
    [
        ('[queues.debug]\npolicy = "fofi"\n', None, "[queues.debug] policy: no policy 'fofi': there are "),
        ("[queues.debug]\n", "easy;debug=fifo:order=sjf", "queue 'debug': policy 'fifo': no option 'order'; it has"),
        ("[queues.debug]\n", "easy;night=fifo", "queue 'night' has a policy in 'easy;night=fifo', but "),
    ],
)
def test_a_wrong_policy_of_a_queue_is_refused_at_start(user: Any, text: str, option: str, want: str) -> None:
    path = user.directory / "site.toml"
    path.write_text(text)
    words = ["--scheduler", option] if option else []
    found = user("start", "--fake", "1x1", "--config", path, *words, "--", "true", status=None)
    assert (found.status != 0, want in found.err, "Traceback" in found.err) == (True, True, False), found


def test_the_mark_of_a_queues_hosts_is_never_shown_as_a_property(daemon: Any, user: Any, until: Any) -> None:
    (user.directory / "hosts.toml").write_text("[queues.long]\nhosts = 'fake[0-1]'\n[queues.short]\nhosts = 'fake2'\n")
    here = daemon("--fake", "3x2", "--config", "hosts.toml")
    refused = here("submit", "-q", "long", "-N3", "true", status=1).err
    assert "3 nodes of 1 core with queue long; the group has only 2 such nodes" in refused
    here("resource", "drain", "0", "weather")
    waiting = here.submit("-q", "long", "-N2", "true")
    until(lambda: "with queue long; 1 node fits now" in here("job", "why", waiting).out)
    shown = [here("queue", "list").out, here("resource", "list", "-o", "{properties} {ranks}").out]
    assert "its hosts" in shown[0]
    assert not any("+" in text for text in shown)
