"""A client's own key: which file it is in. Only its path is ever an option or a variable, never the key."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fluxsched.errors import FluxschedError

if TYPE_CHECKING:  # commands that need no key start sooner
    from fluxsched.transport.curve import KeyPair


def key_for(uri: str, path: str | os.PathLike[str] | None = None) -> KeyPair | None:
    """The keys that a client at `uri` needs: None where the address names no key of its server."""
    return own_key(path) if uri.startswith("tcp://") and "@" in uri else None


def own_key(path: str | os.PathLike[str] | None = None) -> KeyPair:
    """The keys at `path`, else where FLUXSCHED_KEY says, else in `client.key` in the usual place.

    Raises FluxschedError (ENOENT) if there is none, and as `read_secret` does.
    """
    from fluxsched.runtime.access.key_files import read_secret
    from fluxsched.runtime.access.rules import CLIENT_KEY_NAME, key_directory
    from fluxsched.runtime.system.paths import KEY_VARIABLE

    chosen = Path(path or os.environ.get(KEY_VARIABLE) or key_directory() / CLIENT_KEY_NAME)
    if not chosen.exists():
        remedy = f"make one with `fluxsched keygen NAME`, and name it by --key or {KEY_VARIABLE}"
        text = f"the instance lets in only those who have a key, and {chosen} is not there: {remedy}"
        raise FluxschedError(text, errno.ENOENT)
    return read_secret(chosen)
