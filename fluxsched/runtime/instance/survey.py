"""All instances of this user on this machine, and whether they answer.

Law: asking never waits long for one that hangs, and one that ends meanwhile is left away.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Any

from fluxsched.errors import Disconnected, RPCError
from fluxsched.runtime.client.blocking import Handle
from fluxsched.runtime.system.live_instances import live_instances

ANSWER_S = 0.5
"""How long an instance may take to answer before it counts as one that does not (seconds)."""
SILENT = "silent"
"""The state of an instance whose process is there and does not answer."""


def survey() -> list[dict[str, Any]]:
    """Each instance as `instance.info` has it, the oldest first; of a silent one what it wrote when it started."""
    found = []
    for written in reversed(live_instances()):
        try:
            with contextlib.closing(Handle(str(written["uri"]))) as handle:
                info = handle.rpc("instance.info", timeout_s=ANSWER_S)
        except Disconnected:  # it ends just now
            continue
        except RPCError as error:
            if error.errnum != errno.ETIMEDOUT:
                raise
            info = {**written, "state": SILENT}
        found.append(info)
    return found
