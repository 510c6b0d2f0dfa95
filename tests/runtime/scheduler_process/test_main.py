"""What a scheduler's process learns from its instance before it begins."""

from __future__ import annotations

import os
import pwd
from typing import Any

from fluxsched.runtime.scheduler_process.main import settled
from fluxsched.runtime.system.private_files import user_name
from fluxsched.sched.accounts.settings import Bank
from fluxsched.sched.policies.fifo import Fifo

SITE = "[fair]\ncap = 1.5\n[fair.banks]\nphysics = 3\n"


class Sharing(Fifo):
    ACCOUNTS = True


async def test_the_settings_in_force_are_read_if_a_policy_asks_for_accounts(world: Any) -> None:
    instance = await world.bare(config=SITE)
    assert await settled(instance.uri, [Fifo()]) is None
    fair = await settled(instance.uri, [Fifo(), Sharing()])
    assert (fair.cap, fair.banks) == (1.5, {"physics": Bank(3.0)})
    world.write("site.toml", SITE.replace("1.5", "2"))
    await world.second(instance).ok("config.reload")
    assert (await settled(instance.uri, [Sharing()])).cap == 2.0


def test_users_are_named_as_the_machine_names_them() -> None:
    mine = os.getuid()
    assert user_name(mine) == pwd.getpwuid(mine).pw_name
    assert user_name(4_000_000_000) == "4000000000"
