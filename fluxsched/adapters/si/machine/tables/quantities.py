"""Resources of the interface as amounts: read once for equal ones, which most asks have.

Law: a quantity is within 0 and AMOUNT_MAX; none of a kind is the same as not naming it.
"""

from __future__ import annotations

from typing import Any, Final

from fluxsched.core.amounts import AMOUNT_MAX, Amounts
from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.request import Request

SI_KINDS_MAX: Final = 32
"""Maximum number of kinds of a Resource."""

KIND_CHARS_MAX: Final = 256
"""Of the name of a kind, as the longest that Kubernetes has."""

RESOURCES_KNOWN_MAX = 4096
"""Resources that are remembered as read; some hundred bytes each."""


class KnownResource:
    """A Resource as it was read. `fault` says what is wrong with it, else it is ""."""

    __slots__ = ("_requests", "amounts", "fault", "message", "text")

    def __init__(self, message: Any, text: bytes) -> None:
        self.message = message
        self.text = text
        self.amounts, self.fault = _read(message)
        self._requests: dict[Constraint, Request] = {}

    def request(self, constraint: Constraint = EVERYTHING) -> Request:
        """The request of so much on one node; the same object for the same constraint."""
        found = self._requests.get(constraint)
        if found is None:
            found = Request.of_amounts(self.amounts, constraint)
            if len(self._requests) < RESOURCES_KNOWN_MAX:
                self._requests[constraint] = found
        return found


class Quantities:
    """Resources read so far, by their bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, KnownResource] = {}

    def read(self, message: Any) -> KnownResource:
        """A Resource, an absent one as an empty one."""
        text = message.SerializeToString()
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= RESOURCES_KNOWN_MAX:
                self._known.clear()
            own = type(message)()
            own.CopyFrom(message)  # the original keeps the whole request in memory
            found = self._known[text] = KnownResource(own, text)
        return found


def _read(message: Any) -> tuple[Amounts, str]:
    quantities = message.resources
    if len(quantities) > SI_KINDS_MAX:
        return (), f"{len(quantities)} kinds of resources: the limit is {SI_KINDS_MAX}"
    found = []
    for kind in sorted(quantities):
        value = quantities[kind].value
        if not 0 < len(kind) <= KIND_CHARS_MAX:
            return (), f"a kind of resource has a name of {len(kind)} characters: 1 to {KIND_CHARS_MAX} are allowed"
        if not 0 <= value <= AMOUNT_MAX:
            return (), f"resource {kind!r} has the quantity {value}: 0 to {AMOUNT_MAX} are allowed"
        if value:
            found.append((kind, value))
    return tuple(found), ""
