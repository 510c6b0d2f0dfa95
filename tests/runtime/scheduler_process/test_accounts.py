"""`sched.accounts` of a real scheduler: what jobs use is seen at once, and those who keep none say so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.system.private_files import user_name
from fluxsched.sched.accounts.report import ROWS_MAX

ME = user_name(os.getuid())
SITE = """
[fair]
weights = { core = 2 }
cap = 1.5
[fair.banks]
physics = 3
optics = { parent = "physics" }
standby = 1
"""


async def test_accounts_say_what_jobs_use_and_what_is_settled(world: Any, timed: Callable[..., Jobspec]) -> None:
    instance = await world.instance(config=SITE, schedulers=("fair:backfill=easy,budget=60",), fake="2x4")
    client, asker = await world.client(instance), world.second(instance)
    running = await client.submit(timed("1h", ntasks=6, bank="optics", preemptible_after_s=60))
    await client.submit(timed("1h", ntasks=3, bank="standby"))
    async for _ in client.stream("job-manager.watch", {"names": ["start"], "history": True}):
        break
    for _ in range(1000):  # a question overtakes the request for the second job
        found = await asker.ok("sched.accounts", {})
        accounts = {tuple(each["path"]): each for each in found.pop("accounts")}
        if accounts["standby",]["waiting"]:
            break
    assert found == {
        "signal": "decayed-usage", "half_life": 604800.0, "weights": {"core": 2.0}, "shares": "active",
        "capacity": 16.0, "budget": 60.0, "rate": 60, "next": None,
    }  # fmt: skip
    assert list(accounts) == [
        ("physics",), ("physics", "optics"), ("standby",), ("physics", "optics", ME), ("standby", ME)
    ]  # fmt: skip
    mine = accounts["physics", "optics", ME]
    assert (mine["user"], mine["active"], mine["share"], mine["fair_usage"], mine["cap"]) == (True, True, 0.75, 12, 18)
    assert (mine["usage"], mine["held"], mine["running"], mine["budget_left"]) == (12.0, {"core": 6}, 1, 60.0)
    assert 0 <= mine["signal"] < 12
    standby = accounts["standby",]
    assert (standby["user"], standby["waiting"], standby["usage"]) == (False, 1, 0.0)
    await client.rpc("job-manager.cancel", {"id": running})
    assert (await asker.ok("sched.accounts", {"start": 4}))["accounts"][0]["path"] == ["standby", ME]


async def test_who_keeps_none_says_so(world: Any) -> None:
    asker = world.second(await world.instance(schedulers=("easy",)))
    errnum, text = await asker.refused("sched.accounts", {})
    assert (errnum, text) == (
        errno.EOPNOTSUPP, "this scheduler keeps no accounts: use a policy that does, such as fair:backfill=easy"
    )  # fmt: skip
    errnum, text = await asker.refused("sched.accounts", {"group": "lab"})
    assert (errnum, "no scheduler serves group 'lab'" in text) == (errno.ENOSYS, True)
    assert (await asker.refused("sched.accounts", {"start": -1}))[0] == errno.EPROTO


async def test_the_only_scheduler_answers_where_none_serves_the_default_group(world: Any) -> None:
    groups = '[resource.groups]\nlab = "0-3"\n[queues.lab]\ngroup = "lab"\n'
    site = f'{groups}[[scheduler]]\npolicy = "fair"\ngroups = ["lab"]\n'
    asker = world.second(await world.instance(config=site, fake="4x4"))
    assert (await asker.ok("sched.accounts", {}))["capacity"] == 16.0
    assert (await asker.refused("sched.accounts", {"group": "other"}))[0] == errno.ENOSYS


async def test_an_answer_has_a_limit(world: Any) -> None:
    banks = "".join(f"b{at} = 1\n" for at in range(ROWS_MAX + 1))
    asker = world.second(await world.instance(config=f"[fair.banks]\n{banks}", schedulers=("fair",), fake="1x1"))
    first = await asker.ok("sched.accounts", {})
    assert (len(first["accounts"]), first["next"]) == (ROWS_MAX, ROWS_MAX)
    rest = await asker.ok("sched.accounts", {"start": first["next"]})
    assert ([each["path"] for each in rest["accounts"]], rest["next"]) == ([[f"b{ROWS_MAX}"]], None)
