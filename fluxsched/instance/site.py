"""An instance of a site: it belongs to root, its users submit jobs themselves, and their tasks run as them.

Law: what would run a user's job as another user is refused at the start. That holds for a state in which users have
jobs as well: without `run-as-user` they would run as root.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from fluxsched.config.reader import Config
from fluxsched.errors import Refused
from fluxsched.messaging.router import LOCAL_SCHEME

KEY = "[access] run-as-user"
IPC_SCHEME = "ipc://"
ROOT = 0


def check_site(config: Config, bind: Iterable[str], *, has_engine: bool) -> None:
    """Raise Refused if this instance is to be a site's and cannot be."""
    if not config.access.run_as_user:
        return
    if os.geteuid() != ROOT:
        raise Refused(f"{KEY}: only root can run tasks as their users: start the instance as root", errno.EPERM)
    if config.clusters:
        raise Refused(f"{KEY}: jobs of a [[cluster]] would run as its owner: remove one or the other", errno.EINVAL)
    if has_engine:
        text = "tasks on other hosts run as the owner of their keepers: start it with --engine none"
        raise Refused(f"{KEY}: {text}", errno.EINVAL)
    if not any(endpoint.startswith(IPC_SCHEME) for endpoint in bind):
        text = "users need a socket that they reach, as with --bind ipc:///run/fluxsched/site"
        raise Refused(f"{KEY}: {text}", errno.EINVAL)


def check_state(is_sites: bool, config: Config) -> None:
    """Raise Refused for the state of a site if this instance is none: users' jobs in it would run as root."""
    if is_sites and not config.access.run_as_user:
        text = "its jobs run as their users, and would run as root: set run-as-user = true, or name another state"
        raise Refused(f"the state is that of an instance with {KEY}: {text}", errno.EPERM)


def task_addresses(uri: str, local_uri: str, bind: Iterable[str]) -> tuple[str, str]:
    """Return the addresses at which tasks of a site's instance find it: sockets that all users reach, as far as there
    are such.
    """
    given = list(bind)
    shared = [[one for one in given if one.startswith(scheme)] for scheme in (IPC_SCHEME, LOCAL_SCHEME)]
    return (shared[0] or [uri])[0], (shared[1] or [local_uri])[0]
