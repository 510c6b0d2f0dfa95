"""Instances of this user: the running ones, the one that a client connects to, and the search for one that was lost.

An instance describes itself in `instance.json` of its run directory. One rule for both clients and all helpers: an
instance with a state directory has one address and is looked for there; one that ended in good order, or leaves no
state, does not come back; others, such as one at a path of `--bind`, are looked for within a limit. A client's own key
is a file: only its path is ever an option or a variable, never the key.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fluxsched.core.text import is_text, printable
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import (
    INFO_NAME,
    LOCAL_NAME,
    PARENT_VARIABLE,
    PREFIX,
    URI_VARIABLE,
    base_directory,
    end_of,
    state_of,
)
from fluxsched.system.processes import stat_of

if TYPE_CHECKING:  # commands that need no key start sooner
    from fluxsched.transport.base import KeyPair

RECONNECT_S = 60.0
"""Period in which a client looks for an instance that it has lost (seconds): as long as keepers wait for the instance.
"""
ANSWER_S = 60.0
"""Maximum time until an instance must answer where it is (seconds)."""
RETRY_S, RETRY_MAX_S = 0.05, 2.0
"""Pause before the first attempt, and the longest one; each is twice as long as the one before (seconds)."""


class AsksInstance(Protocol):
    """Connection to an instance that answers where it is."""

    uri: str

    def rpc(self, topic: str, payload: dict[str, Any] | None = None, *, timeout_s: float | None = ...) -> Any:
        """Return the response to a request. Raises RPCError."""


def delays() -> Iterator[float]:
    """Yield pauses between attempts (seconds), without an end."""
    delay_s = RETRY_S
    while True:
        yield delay_s
        delay_s = min(2 * delay_s, RETRY_MAX_S)


def attempts(uri: str, within_s: float = RECONNECT_S, *, also_stopped: bool = False) -> Iterator[float]:
    """Yield the pause before each attempt (seconds); the end means that the instance will not be restarted, or not in
    time. `also_stopped`: an instance with a state directory that ended regularly is looked for, too.
    """
    until_s = SystemClock.monotonic_s() + within_s
    for delay_s in delays():
        if not may_come_back(uri, also_stopped=also_stopped):
            return
        yield delay_s
        if SystemClock.monotonic_s() >= until_s:
            return


def may_come_back(uri: str, *, also_stopped: bool = False) -> bool:
    """Return whether an instance may be at `uri` again, by what it has written; of one elsewhere, or at a path of its
    administrator's choice, nothing is known.
    """
    if not _is_local(uri) or _is_chosen(uri):
        return True
    info = _written_at(uri)
    if info is not None:  # it lives, or was killed: what ends in good order removes this
        stat = stat_of(int(info["pid"]))
        return (stat is not None and stat.alive) or info.get("statedir") is not None
    return state_of(uri) is not None and (also_stopped or "unexpectedly" in (end_of(uri) or ""))


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith(("ipc://", "local://"))


def _is_chosen(uri: str) -> bool:
    """Return whether a local address is of `--bind` rather than that of a run directory."""
    directory = Path(uri.partition("://")[2]).parent
    return directory.is_dir() and not directory.name.startswith(PREFIX)


def _written_at(uri: str) -> dict[str, Any] | None:
    """Return the record written by a local instance into its run directory; the record remains until the instance ends
    regularly.
    """
    try:
        found = json.loads((Path(uri.partition("://")[2]).parent / INFO_NAME).read_text())
        return found if isinstance(found, dict) and "pid" in found else None
    except (OSError, ValueError):
        return None


# ---- instances that run


def write_info(run_directory: Path, info: dict[str, Any]) -> None:
    """Describe a running instance for `find_uri`; the file is replaced atomically."""
    draft = run_directory / f".{INFO_NAME}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(info, file)
    draft.replace(run_directory / INFO_NAME)


def read_info(run_directory: Path) -> dict[str, Any] | None:
    """Return the record written by a running instance; None if there is none or the process has ended."""
    try:
        info = json.loads((run_directory / INFO_NAME).read_text())
        stat = stat_of(int(info["pid"]))
        if stat is None or not stat.alive:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return info if isinstance(info, dict) else None


def live_instances() -> list[dict[str, Any]]:
    """Return the records of this user's live instances (InstanceInfo), newest first."""
    found = []
    for path in base_directory().glob(f"{PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(FileNotFoundError):  # just removed
            if path.stat().st_uid == os.getuid() and (info := read_info(path)) is not None and "uri" in info:
                found.append(info)
    return sorted(found, key=lambda info: float(info.get("starttime", 0.0)), reverse=True)


def live_uris() -> list[str]:
    """Return the URIs of this user's live instances that are not nested in another one, newest first."""
    return [str(info["uri"]) for info in live_instances() if not info.get("level")]


def find_uri(uri: str | None = None, *, only: bool = False) -> str:
    """Return the URI of the instance to use: `uri`, else FLUXSCHED_URI, else this user's newest live instance that is
    not a job.

    `only`: a caller that is about to change something must not guess. Raises Refused naming all, if there are several,
    and InvalidValue for an address that is not text.
    """
    if uri or (uri := os.environ.get(URI_VARIABLE)):
        if not is_text(uri):
            raise InvalidValue(f"{URI_VARIABLE} or --uri: '{printable(uri)}' is not UTF-8 text")
        return uri
    found = live_uris()
    if only and len(found) > 1:
        listed = "".join(f"\n  {each}" for each in found)
        raise Refused(
            f"{len(found)} instances of yours are running: name one with --uri or {URI_VARIABLE}{listed}",
            errno.ENOTUNIQ,
        )
    if not found:
        from fluxsched.system.files import last_end

        said = last_end()
        raise FluxschedError(
            "no fluxsched instance found: start one with `fluxsched start`, "
            f"or name a running one with --uri or {URI_VARIABLE}" + (f" ({said})" if said else ""),
            errno.ENOENT,
        )
    return found[0]


def local_uri_of(handle: AsksInstance, timeout_s: float = ANSWER_S) -> str:
    """Return the address of an instance for Flux's commands. On a host of an engine the instance is at other sockets
    than those that it names, which are side by side there, too. Raises RPCError.
    """
    named = str(handle.rpc("attr.get", {"name": "local-uri"}, timeout_s=timeout_s)["value"])
    beside = Path(handle.uri.removeprefix("ipc://")).with_name(LOCAL_NAME)
    return f"local://{beside}" if handle.uri.startswith("ipc://") and beside.is_socket() else named


def parent_of(handle: AsksInstance) -> str:
    """Return the address of the instance around this one, as this process reaches it. Raises FluxschedError for one
    that is in no other.
    """
    info = handle.rpc("instance.info")
    parent: str | None = info.get("parent")
    if parent is None:
        raise FluxschedError(f"the instance {info['uri']} has no enclosing instance")
    here = os.environ.get(PARENT_VARIABLE)
    return here if here and handle.uri == os.environ.get(URI_VARIABLE) else parent


# ---- one's own key


def key_for(uri: str, path: str | os.PathLike[str] | None = None) -> KeyPair | None:
    """Return the keys that a client at `uri` needs: None where the address names no key of its server."""
    return own_key(path) if uri.startswith("tcp://") and "@" in uri else None


def own_key(path: str | os.PathLike[str] | None = None) -> KeyPair:
    """Return the keys at `path`, else those at FLUXSCHED_KEY, else those in `client.key` in the usual place.

    Raises FluxschedError (ENOENT) if there is none, and as `read_secret` does.
    """
    from fluxsched.messaging.keys import CLIENT_KEY_NAME, key_directory, read_secret
    from fluxsched.system.files import KEY_VARIABLE

    chosen = Path(path or os.environ.get(KEY_VARIABLE) or key_directory() / CLIENT_KEY_NAME)
    if not chosen.exists():
        remedy = f"make one with `fluxsched keygen NAME`, and name it by --key or {KEY_VARIABLE}"
        text = f"the instance requires a key, and {chosen} is not there: {remedy}"
        raise FluxschedError(text, errno.ENOENT)
    return read_secret(chosen)
