"""Children of one execution target: ids of cores, of GPUs and of further kinds (RFC 20), and amounts of countables.

Law: `Children` is a set of (kind, id) pairs and a bag of amounts; its algebra is that of each kind's Idset, or amount.
`Entry` gives the same children to a set of ranks, which is why a machine of equal targets costs one entry whatever its
size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.amounts import Amounts, larger, less, parse_amounts, smaller
from fluxsched.core.idset import CACHED_TEXT_CHARS, CACHED_TEXTS_MAX, EMPTY, Idset
from fluxsched.core.jsontext import named, shown
from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

KINDS_MAX = 16
"""Kinds of children a target may list: RFC 20 has two, and each further one is a new kind of hardware."""

REMEMBERED_BELOW: Final = 1 << 1024
"""Masks of ids below 1024 are worth remembering while many are printed; hashing longer ones costs more."""

Extra: TypeAlias = tuple[tuple[str, Idset], ...]


class Children:
    """The cores and GPUs of a target by logical id; `extra` holds further kinds with ids, sorted by name, none empty.

    `amounts` are of what has no ids. In R they stand beside `children`, not in it: see rfc/amounts.md. Never changed.
    """

    # no dataclass: a frozen one takes twice as long to make, and a machine of different targets has one each
    __slots__ = ("amounts", "cores", "extra", "gpus")

    def __init__(self, cores: Idset = EMPTY, gpus: Idset = EMPTY, extra: Extra = (), amounts: Amounts = ()) -> None:
        self.cores: Final = cores
        self.gpus: Final = gpus
        self.extra: Final = extra
        self.amounts: Final = amounts

    def __reduce__(self) -> tuple[type[Children], tuple[Idset, Idset, Extra, Amounts]]:
        return Children, (self.cores, self.gpus, self.extra, self.amounts)

    def __repr__(self) -> str:
        return f"<Children {self}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Children):
            return NotImplemented
        mine = self.cores.mask, self.gpus.mask, self.extra, self.amounts
        return mine == (other.cores.mask, other.gpus.mask, other.extra, other.amounts)

    def __hash__(self) -> int:
        return hash((self.cores.mask, self.gpus.mask, self.extra, self.amounts))

    @classmethod
    def parse(cls, obj: object, amounts: object = None) -> Children:
        """From the `children` and `amounts` of an entry of R_lite. Raises InvalidValue naming the kind at fault."""
        if not isinstance(obj, dict):
            raise InvalidValue(f"children must be an object such as {{'core': '0-3'}}, not {kind_of(obj)}")
        if len(obj) > KINDS_MAX:
            raise LimitExceeded(f"children lists {len(obj)} kinds: the limit is {KINDS_MAX}")
        cores_text, gpus_text = obj.get("core"), obj.get("gpu", "")
        if amounts is None and type(cores_text) is type(gpus_text) is str and len(obj) == 1 + ("gpu" in obj):
            try:
                if len(cores_text) + len(gpus_text) <= CACHED_TEXT_CHARS:
                    return _usual_cached(cores_text, gpus_text)
                return _usual(cores_text, gpus_text)
            except InvalidValue:
                pass  # found again, and named, below
        found = {kind: _idset(kind, text) for kind, text in obj.items()}
        cores, gpus = found.pop("core", EMPTY), found.pop("gpu", EMPTY)
        extra = tuple(sorted([pair for pair in found.items() if pair[1]])) if found else ()
        counted = parse_amounts(amounts)
        if extra and counted and (both := dict(extra).keys() & dict(counted).keys()):
            raise InvalidValue(f"{', '.join(sorted(both))}: a kind has ids in children or an amount, not both")
        return cls(cores, gpus, extra, counted)

    def to_json(self, texts: dict[int, str] | None = None) -> dict[str, str]:
        """The `children` object of R_lite; `core` is always there, as RFC 20 asks, the other kinds when not empty.

        `texts` is for printing many: it keeps the text of masks already seen.
        """
        texts = {} if texts is None else texts
        obj = {"core": text_of(self.cores, texts)}
        if self.gpus.mask:
            obj["gpu"] = text_of(self.gpus, texts)
        for kind, ids in self.extra:
            obj[kind] = text_of(ids, texts)
        return obj

    def kinds(self) -> Iterator[tuple[str, Idset]]:
        """Every kind that is not empty with its ids, in R's words: core, gpu, then the others by name."""
        if self.cores:
            yield "core", self.cores
        if self.gpus:
            yield "gpu", self.gpus
        yield from self.extra

    def masks(self) -> tuple[tuple[str, int], ...]:
        """`kinds` with bit masks for sets: what a record of what is held wants of each grant."""
        found = [("core", self.cores.mask)] if self.cores.mask else []
        if self.gpus.mask:
            found.append(("gpu", self.gpus.mask))
        if self.extra:
            found += [(kind, ids.mask) for kind, ids in self.extra]
        return tuple(found)

    def count(self, kind: str) -> int:
        """Return the number of ids of one kind (`core`, `gpu`, ...), or the amount of a countable."""
        return next((len(ids) for name, ids in self.kinds() if name == kind), dict(self.amounts).get(kind, 0))

    def mask_bits(self) -> int:
        """Return the size of the masks in bits, the weight that R's limit counts."""
        bits = self.cores.mask.bit_length() + self.gpus.mask.bit_length()
        return bits + sum([ids.mask.bit_length() for _, ids in self.extra]) if self.extra else bits

    def __str__(self) -> str:
        """As resource summaries have it: `core[0-3],gpu0`, amounts as `memory:1024`."""
        parts = [f"{kind}{bracketed(ids)}" for kind, ids in self.kinds()]
        if self.amounts:
            parts += [f"{kind}:{amount}" for kind, amount in self.amounts]
        return ",".join(parts)

    def __bool__(self) -> bool:
        return bool(self.cores or self.gpus or self.extra or self.amounts)

    def __or__(self, other: Children) -> Children:
        extra, amounts = _each(operator.or_, self.extra, other.extra), larger(self.amounts, other.amounts)
        return Children(self.cores | other.cores, self.gpus | other.gpus, extra, amounts)

    def __and__(self, other: Children) -> Children:
        extra, amounts = _each(operator.and_, self.extra, other.extra), smaller(self.amounts, other.amounts)
        return Children(self.cores & other.cores, self.gpus & other.gpus, extra, amounts)

    def __sub__(self, other: Children) -> Children:
        extra, amounts = _each(operator.sub, self.extra, other.extra), less(self.amounts, other.amounts)
        return Children(self.cores - other.cores, self.gpus - other.gpus, extra, amounts)

    def __le__(self, other: Children) -> bool:
        """Return whether `other` has every child of this one."""
        return not self - other


def _usual(cores: str, gpus: str) -> Children:
    """The usual shape, without the detours of `parse`."""
    return Children(Idset.parse(cores), Idset.parse(gpus))


# jobs hold the same few sets of cores again and again; at worst it holds as much as the cache of idsets, twice
_usual_cached = lru_cache(CACHED_TEXTS_MAX)(_usual)


class Entry(NamedTuple):
    """Ranks with the same children on every one of them."""

    ranks: Idset
    children: Children

    def __str__(self) -> str:
        """`rank[0-1]/core[0-3],gpu0`, as `sched.resource_summary` has it."""
        return f"rank{bracketed(self.ranks)}/{self.children}"


def bracketed(ids: Idset) -> str:
    """The text of a set behind a name: `0` for one id, else `[0-3,7]`."""
    text = text_of(ids)
    return text if text.isdigit() else f"[{text}]"


def text_of(ids: Idset, texts: dict[int, str] | None = None) -> str:
    """`str(ids)`, and cheap for one high id, which is what the ranks of most jobs are; `texts` remembers, if given."""
    mask = ids.mask
    if texts is not None and mask < REMEMBERED_BELOW:
        text = texts.get(mask)
        if text is None:
            text = texts[mask] = text_of(ids)
        return text
    only = ids.single()
    return str(ids) if only is None else str(only)


def _each(op: Callable[[Idset, Idset], Idset], left: Extra, right: Extra) -> Extra:
    if not left and not right:
        return ()
    mine: Mapping[str, Idset] = dict(left)
    theirs: Mapping[str, Idset] = dict(right)
    both = ((kind, op(mine.get(kind, EMPTY), theirs.get(kind, EMPTY))) for kind in sorted(mine.keys() | theirs.keys()))
    return tuple((kind, ids) for kind, ids in both if ids)


def _idset(kind: object, text: object) -> Idset:
    if type(kind) is not str or not kind:
        raise InvalidValue(f"children: {shown(kind)} is not the name of a kind such as core or gpu")
    try:
        return Idset.parse(text)
    except InvalidValue as fault:
        raise named(f"children.{kind[:40]}", fault) from None
