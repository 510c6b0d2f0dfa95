"""Tables for what is looked up again and again in a big R.

Law: made from a frozen ResourceSet on first use, never changed after; nothing here is known that R does not say.
"""

from __future__ import annotations

from functools import cached_property

from fluxsched.core.children import Entry
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset


class Lookup:
    """Rank to host and entry, host to ranks; each table costs one pass over the ranks, once."""

    def __init__(self, entries: tuple[Entry, ...], ranks: Idset, nodelist: Hostlist) -> None:
        self._entries = entries
        self._ranks = ranks
        self._nodelist = nodelist

    @cached_property
    def dense_from(self) -> int | None:
        """The first rank, if the ranks are one run, so that a host is found by subtraction; else None."""
        ranks = self._ranks
        return ranks.min() if ranks and len(ranks) == ranks.max() - ranks.min() + 1 else None

    @cached_property
    def host_of(self) -> dict[int, str]:
        """Rank -> host, ascending; empty where hosts are not known."""
        return dict(zip(self._ranks, self._nodelist, strict=False))

    @cached_property
    def entry_of(self) -> dict[int, Entry]:
        """Return the entry of each rank."""
        return {rank: entry for entry in self._entries for rank in entry.ranks}

    @cached_property
    def ranks_by_host(self) -> dict[str, list[int]]:
        """Host -> its ranks, ascending; numbers, for as masks those of 131,072 hosts would take a gigabyte."""
        ranks: dict[str, list[int]] = {}
        for rank, host in self.host_of.items():
            ranks.setdefault(host, []).append(rank)
        return ranks
