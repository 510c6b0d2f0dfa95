"""A schedule follows from the trace and the options alone: neither the seed of hashes nor addresses of objects count.

What is iterated in the order of a set of texts depends on the one, of a set of objects compared by identity on the
other. Every policy schedules the same trace in processes that differ in both.
"""

import json
import os
import random
import subprocess
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from fluxsched.sched.registry import OWN
from fluxsched.sim import Ask, Trace, TraceJob, run
from tests.generated.share import ALL, examples, first

ROOT = Path(__file__).parents[3]

CONFIG = """
[fair]
rate = 20
[fair.banks]
physics = 3
optics = { parent = "physics", weight = 2, users = { u1 = 2 } }
lasers = { parent = "physics", weight = 1 }
chemistry = { weight = 2, cap = 3.0 }
[queues.batch]
[queues.debug]
requires = ["fast"]
[policy.jobspec.defaults.system]
bank = "chemistry"
queue = "batch"
[[resource.config]]
hosts = "n[0-11]"
cores = "0-7"
amounts = { memory = "64GiB", scratch = "100GB" }
[[resource.config]]
hosts = "n[4-7]"
properties = ["fast", "ssd", "ib"]
gpus = "0-1"
[[resource.config]]
hosts = "n[8-11]"
properties = ["ib", "old"]
[[topology.switch]]
name = "s0"
hosts = "n[0-5]"
[[topology.switch]]
name = "s1"
hosts = "n[6-11]"
[[topology.switch]]
name = "top"
switches = "s[0-1]"
"""

TELLING = ("fair:usage=dominant,signal=flow,order=sjf", "conservative:compress", "hybrid", "easy:placement=least-lost")
"""Of these each has other sets and tables in use, so they come first."""
POLICIES = (
    *TELLING, *[name for name in sorted(OWN) if name not in ("tree", *TELLING)],
    "firstfit:order=saf", "easy:order=lxf,placement=best-fit", "hybrid:depth=3", "easy;debug=fifo",
    "fair;debug=firstfit", "fair:usage=dominant", "fair:backfill=conservative,usage=dominant,shares=all",
    "fair:backfill=hybrid,cap=1.1,budget=600", "fair:backfill=firstfit,usage=dominant,cap=1.5",
)  # fmt: skip
"""All policies, in the variants that have data structures of their own; `tree` is asked by resource managers below."""

JOBS, PLANNED = (80, 40) if ALL else (40, 20)
"""Jobs, more than there is room for, and those of them that a policy gets which plans each among parts and switches."""

BANKS = ("optics", "lasers", "chemistry", None)
SITE = [
    '{"at": 100, "do": "drain", "targets": "2,5"}',
    '{"at": 500, "do": "undrain", "targets": "2,5"}',
    '{"at": 400, "do": "outage", "targets": "8-9", "for": 400}',
]
STEPS = 120


def test_every_policy_schedules_the_same_under_other_hash_seeds_and_addresses(tmp_path):
    one, *others = [_schedules(tmp_path, seed, order=seed) for seed in ((1, 2, 3) if ALL else (1, 2))]
    assert len(one) == len(first(POLICIES)) + 1
    assert [(at, name) for at, found in enumerate(others) for name in one if found[name] != one[name]] == []


def test_a_bank_that_is_read_again_after_its_users_stays_in_line(tmp_path):
    """With `usage=dominant` all accounts are touched when the capacity is known, the banks above them as well."""
    config = tmp_path / "c.toml"
    config.write_text("[fair.banks]\nA = 1\nB = 1\n")
    jobs = [TraceJob(at, 0.0, 600.0, 600.0, Ask(1), user="ann", bank="A") for at in range(4)]
    for order in range(examples(20)):
        kept = disorder_addresses(order)
        found = run(Trace.of(jobs), "fair:usage=dominant", nodes=1, cores=32, config=config)
        assert found.jobs.start == [0.0] * 4
        del kept


def _schedules(directory, hash_seed, order):
    """The digest of each schedule in a process of its own."""
    path = f"import sys; sys.path.append({str(ROOT)!r})"  # behind the compiled package, where that is tested
    program = f"{path}; from {__name__} import *; print(json.dumps(digests(Path({str(directory)!r}), {order})))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=True, cwd=directory,
    )  # fmt: skip
    return json.loads(done.stdout)


# ---- in that process


def digests(directory, order):
    """By policy."""
    config, site = directory / "config.toml", directory / "site.jsonl"
    config.write_text(CONFIG)
    site.write_text("\n".join(SITE))
    jobs, found = mixed_jobs(random.Random(7)), {"tree": digest(_resource_managers, order)}
    for policy in first(POLICIES):
        trace = Trace.of(jobs[: PLANNED if "conservative" in policy else JOBS])
        found[policy] = digest(partial(_simulated, trace, policy, config, site), order)
    return found


def digest(what, order):
    """Of what comes out where objects that are made get addresses in another order."""
    kept = disorder_addresses(order)
    found = sha256(repr(what()).encode()).hexdigest()
    del kept
    return found


def disorder_addresses(order):
    """Have the next objects of each size get addresses in a random order: those of others, of which every second is
    freed, one here and one there. Returns the others.
    """
    chance = random.Random(order)
    found = [object() for _ in range(20_000)]
    found += [bytearray(size) for size in range(16, 500, 16) for _ in range(2_000)]
    found += [bytes(size) for size in range(1, 460, 16) for _ in range(2_000)]
    found += [dict.fromkeys(range(at % 9)) for at in range(20_000)]
    chance.shuffle(found)
    del found[::2]
    return found


def _simulated(trace, policy, config, site):
    jobs = run(trace, policy, config=config, site=site, placements=True, preempt_grace_s=5.0).jobs
    assert any(start is not None for start in jobs.start)
    return list(zip(jobs.start, jobs.end, jobs.ranks or (), jobs.state, jobs.preemptions, jobs.resizes, strict=False))


def mixed_jobs(chance):
    """Jobs of all kinds, more than there is room for."""
    constraint = '{"properties": ["ib"]}', '{"properties": ["^old"]}', None, None
    found = []
    for at in range(JOBS):
        kind, elastic = chance.random(), chance.random() < 0.3
        if kind < 0.4:
            ask = Ask(chance.randint(1, 8), chance.choice((1, 2)), constraint=chance.choice(constraint))
        elif kind < 0.5:
            ask = Ask(gpus=1, cores=2)
        elif kind < 0.8:
            ask = Ask(cores=8, nodes=f"1-{chance.randint(2, 5)}", exclusive=True, elastic=elastic)
        elif kind < 0.9:
            nodes = chance.randint(1, 4)
            ask = Ask(nodes, 8, nodes=nodes, exclusive=True, max_hops=chance.choice((2, None)))
        else:
            ask = Ask(elastic=elastic, parts='[{"label": "a", "nodes": 1}, {"label": "b", "nodes": "1-3"}]')
        run_s = chance.choice((60.0, 200.0, 555.5))
        found.append(
            TraceJob(
                at + 1, chance.uniform(0.0, 600.0), run_s, run_s * chance.choice((0.9, 1.5, 3.0)), ask,
                user=f"u{chance.randint(1, 4)}", queue=chance.choice(("batch", "batch", "debug", None)),
                bank=chance.choice(BANKS), preemptible_after_s=chance.choice((None, 0.0, 30.0)),
                requeue=chance.randint(0, 1), urgency=chance.choice((16, 16, 20)),
            )
        )  # fmt: skip
    return found


def _resource_managers():
    """All that managers of the Scheduler Interface hear while they do things at random."""
    from fluxsched.yunikorn.messages import SendResponse
    from tests.yunikorn.machine.rms import World
    from tests.yunikorn.machine.test_random_rms import Manager

    chance, world = random.Random(11), World()
    managers = [Manager(world, name) for name in ("one", "two")]
    said = []
    for _ in range(STEPS):
        manager = chance.choice(managers)
        name = chance.choice("123")
        steps = (
            ("node", name, 12), ("resize", name, chance.randint(3, 20)), ("drain", name), ("undrain", name),
            ("application", name, chance.choice("ab"), ""), ("release", chance.randint(0, 9)), ("time", 2.5),
            *[("ask", name, chance.choice("123"), chance.randint(1, 5), 2, 0, True)] * 3,
        )  # fmt: skip
        manager.step(*chance.choice(steps))
        world.run()
        said += [str(each.response) for each in world.said if isinstance(each, SendResponse)]
        for each in managers:
            each.hear()
    return said


@pytest.fixture(autouse=True)
def _interfaces():
    pytest.importorskip("google.protobuf")
    pytest.importorskip("yaml")
