"""Roles of peers, each with all rights of those below it (RFC 12, which knows owner and guest)."""

from __future__ import annotations

from enum import IntEnum

from fluxsched.errors import InvalidValue


class Role(IntEnum):
    """A guest looks, and has jobs of its own; an admin runs the site; the owner is whom the instance runs as."""

    GUEST = 1
    ADMIN = 2
    OWNER = 3

    def __str__(self) -> str:
        return self.name.lower()


ROLE_NAMES = tuple(map(str, Role))


def parse_role(text: str) -> Role:
    """The role of that name. Raises InvalidValue."""
    if text not in ROLE_NAMES:
        raise InvalidValue(f"role {text[:40]!r} is not one of {', '.join(ROLE_NAMES)}")
    return Role[text.upper()]
