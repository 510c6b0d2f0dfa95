"""Roles of peers: owner and guest as in RFC 12, admin, and keeper.

Those of people have all rights of the roles below them; a keeper, which is no person, has the rights of its service
alone.
"""

from __future__ import annotations

from enum import IntEnum

from fluxsched.errors import InvalidValue


class Role(IntEnum):
    """A keeper runs tasks on a host; a guest looks, and has jobs of its own; an admin runs the site; the owner is whom
    the instance runs as.
    """

    KEEPER = 0
    GUEST = 1
    ADMIN = 2
    OWNER = 3

    def __str__(self) -> str:
        return self.name.lower()


ROLE_NAMES = tuple([str(role) for role in Role if role is not Role.KEEPER])
"""Roles that people can be given: that of a keeper is given by an instance to the keys that it makes for its engine."""


def parse_role(text: str) -> Role:
    """Return the role of that name, one of people's. Raises InvalidValue."""
    if text not in ROLE_NAMES:
        raise InvalidValue(f"role {text[:40]!r} is not one of {', '.join(ROLE_NAMES)}")
    return Role[text.upper()]
