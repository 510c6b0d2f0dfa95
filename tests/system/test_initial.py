"""The program of `fluxsched start -- ...` and all that it started end with the instance, however that ends."""

from __future__ import annotations

import signal
from typing import Any

import pytest

SCRIPT = """
sh -c 'echo $$ > .child; mv .child child; sleep 404; :' &
(sh -c 'echo $$ > .orphan; mv .orphan orphan; exec env -i sleep 404' &)
while [ ! -e child ] || [ ! -e orphan ]; do sleep .02; done
setsid sh -c 'echo $$ > .daemon; mv .daemon daemon; exec sleep 404' &
while [ ! -e daemon ]; do sleep .02; done
echo up; wait
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_grandchildren_of_the_command_end_with_the_instance(
    user: Any, alive: Any, until: Any, kill_hard: Any, signum: int
) -> None:
    with user.popen("start", "--fake", "1x1", "--", "sh", "-c", SCRIPT) as process:
        assert process.stdout.readline() == "up\n"
        child, orphan, daemon = (int((user.directory / name).read_text()) for name in ("child", "orphan", "daemon"))
        process.send_signal(signum)
        until(lambda: not alive(child))
        if signum == signal.SIGKILL:  # the orphan left its group, its parent and its environment: it escapes
            kill_hard(orphan)
        else:
            until(lambda: not alive(orphan))
            kill_hard(daemon)  # it went for a session of its own, so it was left alone
        process.communicate(timeout=60)
    until(lambda: not [path for path in user.directory.iterdir() if path.name.startswith("fluxsched-")])


def test_what_a_command_leaves_in_the_background_stays_when_it_has_ended(user: Any, kill_hard: Any) -> None:
    found = user.shell("sleep 404 >/dev/null 2>&1 & echo $!", "--fake", "1x1")
    kill_hard(int(found.word))
