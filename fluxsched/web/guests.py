"""Guests' links: addresses of the page for people who look and change nothing, each with a name and an end.

A link is a file of its name in a directory beside the file with the page's address: it has the end and a digest of the
token, which stands in the printed address alone. Without the file, and after the end, the link opens nothing.

Law: what a guest sees is decided by the instance: guests are served over a connection that has given up its rights.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import re
from pathlib import Path

import msgspec

from fluxsched.core.quantities import parse_duration
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.system.clock import SystemClock, local_moment, secret_token
from fluxsched.system.files import private_directory, replace_private_text

GUEST_NAME_CHARS_MAX = 32
LINK_BYTES_MAX = 4096
"""Of a file; it has 120."""
LINKS_MAX = 1000
"""Files in the directory: one may be sent to many people."""
DEFAULT_S, LONGEST_S = 7 * 86_400.0, 366 * 86_400.0
"""Time for which a link holds unless said otherwise, and at most (seconds)."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{GUEST_NAME_CHARS_MAX - 1}}}")


class GuestLink(msgspec.Struct, frozen=True):
    """Contents of a link's file: its end (wall time), and the SHA-256 of its token as hex digits."""

    until: float
    digest: str

    def is_opened_by(self, secret: str) -> bool:
        """Return whether this is the secret part of the link's token."""
        return hmac.compare_digest(self.digest, _digest(secret))


def parse_hold(text: str) -> float:
    """Return the time for which a link is to hold (seconds). Raises InvalidValue or LimitExceeded."""
    hold_s = parse_duration(text)
    if not 0.0 < hold_s <= LONGEST_S:
        raise LimitExceeded(
            f"{text[:20]!r} is not more than 0 and at most {LONGEST_S / 86_400:.0f}d: a link has an end"
        )
    return hold_s


def check_name(name: str) -> None:
    """Raise InvalidValue for a name that is none."""
    if not _NAME.fullmatch(name):
        what = f"is not 1-{GUEST_NAME_CHARS_MAX} letters, digits, _ and - after a letter or digit"
        raise InvalidValue(f"guest's name {name[:GUEST_NAME_CHARS_MAX]!r} {what}")


class GuestLinks:
    """The links of one page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self, name: str, hold_s: float) -> str:
        """Return the token of a new link that holds so long.

        Raises InvalidValue for a name that is none, and Refused if a link of this name holds.
        """
        check_name(name)
        private_directory(self.directory, "directory of guests' links")
        if (kept := self.find(name)) is not None:
            until = local_moment(kept.until)
            raise Refused(f"link {name} holds until {until}: give another name, or end it: rm {self.directory / name}",
                          errno.EEXIST)  # fmt: skip
        self._drop_ended()
        if sum(1 for _ in self.directory.iterdir()) >= LINKS_MAX:
            raise LimitExceeded(f"{self.directory} holds {LINKS_MAX} links, the limit: remove those that are not used")
        secret = secret_token()
        link = GuestLink(SystemClock.wall_s() + hold_s, _digest(secret))
        replace_private_text(self.directory / name, msgspec.json.encode(link).decode())
        return f"{name}.{secret}"

    def _drop_ended(self) -> None:
        """Remove the files of links that are over, and none that is no link or cannot be read."""
        for file in self.directory.iterdir():
            link = self._read(file.name)
            if link is not None and link.until <= SystemClock.wall_s():
                file.unlink(missing_ok=True)

    def find(self, name: str) -> GuestLink | None:
        """Return the link of a name; None if there is none, or it holds no more."""
        link = self._read(name)
        return link if link is not None and SystemClock.wall_s() < link.until else None

    def _read(self, name: str) -> GuestLink | None:
        if not _NAME.fullmatch(name):
            return None
        try:
            with open(self.directory / name, "rb") as file:
                return msgspec.json.decode(file.read(LINK_BYTES_MAX), type=GuestLink)
        except (OSError, msgspec.MsgspecError):
            return None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
