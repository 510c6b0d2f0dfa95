"""Banks that jobs may be charged to (RFC 14), decided once, when a job is submitted.

Law: a job that was accepted stays accepted, whatever becomes of its bank.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.jsontext import shown
from fluxsched.core.sharing import DEFAULT_BANK
from fluxsched.core.text import some_of
from fluxsched.errors import Refused


@dataclass(frozen=True, slots=True)
class Banks:
    """`default` is for jobs that name none (None: these are charged to DEFAULT_BANK); `known` None: any bank counts."""

    default: str | None = None
    known: Collection[str] | None = None

    def missing_in(self, jobspec: Jobspec) -> str | None:
        """The bank that is to be added to a new job; None if it stays as it is. Raises Refused for an unknown one."""
        own = jobspec.sharing.bank
        bank = own or self.default or DEFAULT_BANK
        if self.known is not None and bank not in self.known:
            known = some_of(list(self.known))
            if own is None and self.default is None:
                raise Refused(f"the job names no bank, and there is no default: name one of {known}", errno.EINVAL)
            raise Refused(f"bank {shown(bank)} does not exist: use one of {known}", errno.EINVAL)
        return self.default if own is None else None


ANY_BANK: Final = Banks()
"""Banks where none are configured: any bank is accepted."""
