"""Ordered lists of host names (RFC 29): order, duplicates and zero padding are kept, unlike in an idset.

Law: a text is sized before it is expanded, so that a few bytes cannot ask for gigabytes; both directions are linear in
the number of hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, overload

from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

HOSTS_MAX = 1 << 18
"""Hosts in one list: twice the largest machine we aim at (131,072), some 20 MiB of names."""

HOST_CHARS_MAX = 255
"""Length of one name, the longest that POSIX and DNS know; bounds what HOSTS_MAX hosts can weigh."""

SHOWN_CHARS: Final = 40
"""Number of characters of an offending text that an error repeats."""

_DIGITS: Final = "0123456789"
_PRINTABLE: Final = re.compile(r"[!-~]*")
_NAME: Final = re.compile(r"[!-+\--Z\\^-~]+")  # printable ASCII without space, comma and square brackets
_EXPRESSION: Final = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\]([^\[\],]*))?(?:,|$)")
_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class Hostlist:
    """An ordered list of host names. The bare constructor trusts its tuple; `of` and `parse` check."""

    hosts: tuple[str, ...] = ()
    _text: str | None = field(default=None, init=False, compare=False)

    @classmethod
    def parse(cls, text: object) -> Hostlist:
        """Return the list that an RFC 29 text names; empty expressions (`""`, `"a,,b"`) add nothing.

        Raises InvalidValue naming the expression that is wrong, LimitExceeded above HOSTS_MAX or HOST_CHARS_MAX.
        """
        if not isinstance(text, str):
            raise InvalidValue(f"hostlist must be a string such as 'node[0-3]', not {kind_of(text)}")
        if not _PRINTABLE.fullmatch(text):
            raise InvalidValue(f"hostlist {_shown(text)} has spaces or characters that are not printable ASCII")
        if "[" in text or "]" in text:
            return cls(tuple(_expand(text)))
        hosts = tuple([host for host in text.split(",") if host])
        _check_size(len(hosts), max(map(len, hosts), default=0))
        return cls(hosts)

    @classmethod
    def of(cls, hosts: Iterable[str]) -> Hostlist:
        """Return the list of these names, each one host, not an expression. Raises like `parse`."""
        names = tuple(hosts)
        for name in names:
            if not _NAME.fullmatch(name):
                raise InvalidValue(f"host name {_shown(name)} is empty or has spaces, commas, brackets or non-ASCII")
        _check_size(len(names), max(map(len, names), default=0))
        return cls(names)

    def __str__(self) -> str:
        """RFC 29 text: neighbours that differ in their trailing number share one bracket."""
        if self._text is None:  # 16,384 hosts take 7 ms, and each acquirer is sent them
            object.__setattr__(self, "_text", _text(self.hosts))
        return self._text or ""

    def __repr__(self) -> str:
        return f"Hostlist.parse({str(self)!r})"

    def __len__(self) -> int:
        return len(self.hosts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.hosts)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Hostlist: ...
    def __getitem__(self, at: int | slice) -> str | Hostlist:
        return Hostlist(self.hosts[at]) if isinstance(at, slice) else self.hosts[at]

    def __contains__(self, host: object) -> bool:
        return host in self.hosts

    def __add__(self, other: Hostlist) -> Hostlist:
        """Return this list followed by the other. Raise LimitExceeded above HOSTS_MAX."""
        _check_size(len(self.hosts) + len(other.hosts), 0)
        return Hostlist(self.hosts + other.hosts)

    def positions(self, host: str) -> tuple[int, ...]:
        """Return the positions of the host in the list, ascending; empty if it is not there.

        Linear: index the list for many.
        """
        return tuple([at for at, name in enumerate(self.hosts) if name == host])

    def unique(self) -> Hostlist:
        """Each host once, where it came first."""
        return Hostlist(tuple(dict.fromkeys(self.hosts)))

    def sorted(self) -> Hostlist:
        """By prefix, then by trailing number (`node9` before `node10`), then by padding."""
        return Hostlist(tuple(sorted(self.hosts, key=_order)))


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")


def _check_size(hosts: int, longest_chars: int) -> None:
    if hosts > HOSTS_MAX:
        raise LimitExceeded(f"hostlist of {hosts} hosts is above the limit of {HOSTS_MAX}: name fewer hosts")
    if longest_chars > HOST_CHARS_MAX:
        raise LimitExceeded(f"host name of {longest_chars} characters is above the limit of {HOST_CHARS_MAX}")


def _expand(text: str) -> list[str]:
    hosts: list[str] = []
    at = 0
    while at < len(text):
        match = _EXPRESSION.match(text, at)
        if match is None:
            raise InvalidValue(f"hostlist: {_shown(text[at:])} may have one pair of brackets, such as node[0-3]")
        prefix, idlist, suffix = match.groups()
        if idlist is None:
            _check_size(len(hosts) + 1, len(prefix))
            hosts.extend([prefix] if prefix else ())
        else:
            _expand_idlist(hosts, prefix, idlist, suffix)
        at = match.end()
    return hosts


def _expand_idlist(hosts: list[str], prefix: str, idlist: str, suffix: str) -> None:
    """Append `prefix[idlist]suffix`; leading zeros of the first id hold for all, a later id's own are kept too."""
    list_width: int | None = None
    for part in idlist.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InvalidValue(f"hostlist: {_shown(part)} in {_shown(f'{prefix}[{idlist}]')} is not an id or a range")
        low, high = match.group(1), match.group(2) or match.group(1)
        _check_size(0, len(prefix) + max(len(low), len(high)) + len(suffix))  # before int(), which has a limit too
        first, last = int(low), int(high)
        if last < first:
            raise InvalidValue(f"hostlist: range {_shown(part)} in {_shown(f'{prefix}[{idlist}]')} descends")
        _check_size(len(hosts) + last - first + 1, 0)
        width = _padding(low)
        list_width = width if list_width is None else list_width
        form = f"{{}}{{:0{max(width, list_width)}d}}{{}}".format if width or list_width else "{}{}{}".format
        hosts.extend([form(prefix, id, suffix) for id in range(first, last + 1)])


def _padding(digits: str) -> int:
    """Return the width that leading zeros demand, 0 without them."""
    return len(digits) if digits[0] == "0" and len(digits) > 1 else 0


def _text(hosts: tuple[str, ...]) -> str:
    """Neighbours of one prefix whose numbers all print right in the width of the first share a bracket.

    One loop: a hostlist of twenty bytes may be 262,144 hosts of which no two do.
    """
    parts: list[str] = []
    prefix: str | None = None
    runs: list[str] = []  # of this prefix, those before first-last
    first = last = ""
    width, number = 0, -1
    for host in hosts:
        stem = host.rstrip(_DIGITS)
        digits = host[len(stem) :]
        padding = _padding(digits) if digits else 0
        if digits and stem == prefix and (padding == width if padding else len(digits) >= width):
            value = int(digits)
            if value != number + 1:
                runs.append(_run(first, last))
                first = digits
            last, number = digits, value
            continue
        if prefix is not None:
            parts.append(_bracketed(prefix, runs, first, last))
        if digits:
            prefix, width, first, last, number = stem, padding, digits, digits, int(digits)
            runs = []
        else:
            prefix = None
            parts.append(host)
    if prefix is not None:
        parts.append(_bracketed(prefix, runs, first, last))
    return ",".join(parts)


def _run(first: str, last: str) -> str:
    return first if first == last else f"{first}-{last}"


def _bracketed(prefix: str, runs: list[str], first: str, last: str) -> str:
    if first == last and not runs:
        return prefix + first
    return f"{prefix}[{','.join([*runs, _run(first, last)])}]"


def _order(host: str) -> tuple[str, int, int]:
    stem = host.rstrip(_DIGITS)
    digits = host[len(stem) :]
    return stem, int(digits) if digits else -1, len(digits)
