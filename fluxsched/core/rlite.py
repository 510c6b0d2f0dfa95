"""R_lite, the list in the middle of R (RFC 20): entries of ranks with equal children, and their algebra.

`Children` is what one target has, ids of cores, of GPUs and of further kinds, and amounts of countables: a set of
(kind, id) pairs and a bag of amounts; its algebra is that of each kind's Idset, or amount. `Entry` gives the same
children to a set of ranks, which is why a machine of equal targets costs one entry whatever its size.

Law: entries are disjoint in their ranks, differ in their children and are ordered by lowest rank; `merge` is the only
place that makes them so. Reading them from JSON, printing them and the cutting that set algebra on resources needs are
linear in the entries: nothing expands 131,072 equal targets.

Drained parts of targets: cores and GPUs that no new job gets, while the rest of their target is in use.

Law: a value, in text an R_lite (RFC 20) of just these parts. Targets that do not exist are no fault here, nor are ids
that they do not have: which there are is known to others, and changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.core.idset import CACHED_TEXT_CHARS, CACHED_TEXTS_MAX, EMPTY, ID_MAX, Idset
from fluxsched.core.quantities import Amounts, larger, less, parse_amounts, smaller
from fluxsched.core.text import kind_of, named, shown
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
        """Return the `children` object of R_lite; `core` is always there, as RFC 20 asks, the other kinds when not
        empty.

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
    """Parse the usual shape, without the detours of `parse`."""
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
    """Return the text of a set behind a name: `0` for one id, else `[0-3,7]`."""
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


# ---- entries: from JSON, to JSON, cut

ENTRIES_MAX = 1 << 18
"""Entries of one R_lite: twice the targets of the largest machine we aim at, each listed by itself."""

MASK_BITS_MAX = 1 << 31
"""256 MiB of masks for one R: 46,000 targets that all differ; more would be a few lines that eat the memory."""


class Merged(NamedTuple):
    """Entries as the law above wants them, and the union of their ranks."""

    entries: tuple[Entry, ...]
    ranks: Idset


RlitePart: TypeAlias = tuple[Idset | int, Children]
"""One rank or several, and what each of them controls."""


def merge(parts: Iterable[RlitePart]) -> Merged:
    """Join parts into entries.

    A rank may come more than once if it brings other children each time (RFC 20 asks for no order and no uniqueness);
    the same child twice raises InvalidValue, too much variety LimitExceeded.
    """
    parts = list(parts)
    if len(parts) == 1:
        ranks, children = parts[0]
        ranks = Idset.one(_checked(ranks)) if isinstance(ranks, int) else ranks
        return Merged((Entry(ranks, children),), ranks) if ranks else Merged((), EMPTY)
    gather = _Gather()
    last, slot = None, 0
    for ranks, children in parts:
        if children is not last:  # neighbours are mostly equal
            last, slot = children, gather.slot(children)
        gather.add(slot, ranks)
    return gather.merged()


def parse_entries(obj: object) -> Merged:
    """R_lite as a list of entries, or as one object as the examples of 2019 have it. Raises InvalidValue by path."""
    items = _items(obj)
    if len(items) == 1:
        return _parse_one(items[0])
    gather = _Gather()
    sets: dict[str, Idset] = {}  # targets that differ still have the same few sets of cores and GPUs
    bits = 0
    for at, item in enumerate(items):
        try:
            ranks, children, amounts = _ranks(item["rank"]), item["children"], item.get("amounts")
            cores, gpus = sets.get(children.get("core")), sets.get(children.get("gpu", ""))
            if cores is None or gpus is None or amounts is not None or len(children) != 1 + ("gpu" in children):
                made = Children.parse(children, amounts)
                bits += made.mask_bits()
                if len(children) == 1 + ("gpu" in children) and "core" in children and amounts is None:
                    sets[children["core"]], sets[children.get("gpu", "")] = made.cores, made.gpus
                slot = gather.slot(made)
            else:
                slot = gather.usual_slot(cores, gpus)
            gather.add(slot, ranks)
        except (KeyError, TypeError, AttributeError, InvalidValue) as fault:
            raise _entry_fault(f"R_lite[{at}]", item, fault) from None
        if not isinstance(ranks, int):
            bits += ranks.mask.bit_length()
        if bits > MASK_BITS_MAX:
            raise _too_varied()
    return gather.merged()


def _parse_one(item: Any) -> Merged:
    """R_lite of one entry, which most jobs have: nothing to join, a third of the time."""
    try:
        ranks, children = _ranks(item["rank"]), Children.parse(item["children"], item.get("amounts"))
    except (KeyError, TypeError, AttributeError, InvalidValue) as fault:
        raise _entry_fault("R_lite[0]", item, fault) from None
    if isinstance(ranks, int):
        ranks = Idset.one(ranks)
    return Merged((Entry(ranks, children),), ranks) if ranks else Merged((), EMPTY)


def print_entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """R_lite in its list form."""
    texts: dict[int, str] = {}  # targets that differ still have the same few sets of cores
    return [_printed(entry, texts) for entry in entries]


def _printed(entry: Entry, texts: dict[int, str]) -> dict[str, Any]:
    ranks, children = entry
    obj: dict[str, Any] = {"rank": text_of(ranks), "children": children.to_json(texts)}
    if children.amounts:
        obj["amounts"] = dict(children.amounts)
    return obj


def rlite_ranks(obj: Mapping[str, Any]) -> Idset:
    """Only the ranks of an R that stays JSON: what the job manager records of each allocation.

    Children, nodelist and the rest are not looked at. Raises InvalidValue naming the part.
    """
    try:
        rlite = obj["execution"]["R_lite"]
    except (KeyError, TypeError):
        raise InvalidValue("R has no execution.R_lite, where its ranks are (RFC 20)") from None
    single: list[int] = []
    mask = 0
    for at, item in enumerate(_items(rlite)):
        try:
            ranks = _ranks(item["rank"])
        except (KeyError, TypeError, InvalidValue) as fault:
            raise _entry_fault(f"R_lite[{at}]", item, fault) from None
        if isinstance(ranks, int):
            single.append(ranks)
        else:
            mask |= ranks.mask
    if len(single) == 1:
        return Idset(mask | 1 << single[0])
    return Idset(mask | Idset.of(single).mask)


def overlay(
    left: Iterable[Entry], right_ranks: Idset, right_entry: Callable[[int], Entry]
) -> Iterator[tuple[Idset, Children, Children | None]]:
    """Cut `left` where the right side's children change: ranks, children there on the left, on the right (or None).

    One step a pair of entries that really meet: neither rank by rank, nor all pairs.
    """
    for entry in left:
        outside = entry.ranks - right_ranks
        if outside:
            yield outside, entry.children, None
        rest = entry.ranks & right_ranks
        while rest:
            other = right_entry(rest.min())
            common = rest & other.ranks
            yield common, entry.children, other.children
            rest = rest - common


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Entries with ranks, by lowest rank."""
    return tuple(sorted((entry for entry in entries if entry.ranks), key=_lowest))


def rank_list(ranks: Idset) -> str:
    """Offending ranks for an error text, all of them: `rank 3` or `ranks 0-3,7`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks}"


def lowest_bit(mask: int) -> int:
    """Return the position of the lowest bit of a mask, -1 if there is none."""
    return (mask & -mask).bit_length() - 1


def _lowest(entry: Entry) -> int:
    return lowest_bit(entry.ranks.mask)


def _checked(rank: int) -> int:
    if not 0 <= rank <= ID_MAX:
        raise LimitExceeded(f"rank {rank} is outside 0..{ID_MAX}: the limit of {ID_MAX} holds for every rank")
    return rank


def _too_varied() -> LimitExceeded:
    return LimitExceeded(
        f"R_lite has too many different entries of high ids: their masks take more than {MASK_BITS_MAX} bits; "
        "give equal targets in one entry, and number ranks from 0"
    )


class _Gather:
    """Ranks by their children: each different Children has a slot, which becomes an entry."""

    def __init__(self) -> None:
        self._slots: dict[tuple[object, ...], int] = {}
        self._children: list[Children] = []
        self._first: list[Idset | int] = []  # of each slot; most have no more, where there are many
        self._more: dict[int, list[Idset | int]] = {}

    def slot(self, children: Children) -> int:
        """Return the slot to which the ranks of these children are added."""
        if not children.extra and not children.amounts:
            return self.usual_slot(children.cores, children.gpus, children)
        return self._slot((children.cores.mask, children.gpus.mask, children.extra, children.amounts), children)

    def usual_slot(self, cores: Idset, gpus: Idset, children: Children | None = None) -> int:
        """Return the slot of children that are cores and GPUs alone."""
        key = (cores.mask, gpus.mask)  # hashed and compared without Python code
        found = self._slots.get(key)
        return self._slot(key, children or Children(cores, gpus)) if found is None else found

    def _slot(self, key: tuple[object, ...], children: Children) -> int:
        slot = self._slots.setdefault(key, len(self._children))
        if slot == len(self._children):
            self._children.append(children)
        return slot

    def add(self, slot: int, ranks: Idset | int) -> None:
        """Targets with the children of a slot."""
        if slot == len(self._first):
            self._first.append(ranks)
        else:
            self._more.setdefault(slot, []).append(ranks)

    def merged(self) -> Merged:
        """Return the entries. A rank found in two slots, or twice in one, is looked at rank by rank."""
        single: list[int] = []
        found: list[Entry] = []
        lowest: list[int] = []
        union = bits = total = 0
        for slot, ranks in enumerate(self._first):
            more = self._more.get(slot)
            if more is None and isinstance(ranks, int) and 0 <= ranks <= ID_MAX:
                single.append(ranks)
                lowest.append(ranks)
                bits += ranks + 1
                found.append(Entry(Idset.one(ranks), self._children[slot]))
            else:
                first, joined, given = _join([ranks, *(more or ())])
                total += given
                bits += joined.mask.bit_length()
                union |= joined.mask
                if joined.mask:
                    lowest.append(first)
                    found.append(Entry(joined, self._children[slot]))
            if bits > MASK_BITS_MAX:
                raise _too_varied()
        union |= Idset.of(single).mask
        if total + len(single) != union.bit_count():
            return merge(_one_a_rank(self._parts()))
        if lowest != sorted(lowest):
            found = [found[at] for at in sorted(range(len(found)), key=lowest.__getitem__)]
        return Merged(tuple(found), Idset(union))

    def _parts(self) -> Iterator[RlitePart]:
        for slot, ranks in enumerate(self._first):
            for one in (ranks, *self._more.get(slot, ())):
                yield one, self._children[slot]


def _join(bucket: list[Idset | int]) -> tuple[int, Idset, int]:
    """Return the lowest rank of a bucket (-1 if empty), all its ranks, and how many were given, repeats included."""
    single = [ranks for ranks in bucket if isinstance(ranks, int)]
    sets = [ranks for ranks in bucket if not isinstance(ranks, int)]
    mask = Idset.of(single).mask
    for ranks in sets:
        mask |= ranks.mask
    return lowest_bit(mask), Idset(mask), len(single) + sum(map(len, sets))


def _one_a_rank(parts: Iterable[RlitePart]) -> Iterable[RlitePart]:
    """Join children in the slow way, for a rank that is listed more than once."""
    joined: dict[int, Children] = {}
    for ranks, children in parts:
        for rank in [ranks] if isinstance(ranks, int) else ranks:
            before = joined.get(rank)
            if before is not None and (twice := before & children):
                raise InvalidValue(f"rank {rank} is listed twice with {twice}: a child belongs to one entry")
            joined[rank] = children if before is None else before | children
    return joined.items()


def _items(obj: object) -> Sequence[Any]:
    if isinstance(obj, dict):
        return (obj,)
    if not isinstance(obj, list | tuple):
        raise InvalidValue(f"execution.R_lite must be a list of entries, not {kind_of(obj)}")
    if len(obj) > ENTRIES_MAX:
        raise LimitExceeded(f"execution.R_lite has {len(obj)} entries: the limit is {ENTRIES_MAX}; merge equal targets")
    return obj


def _ranks(text: object) -> Idset | int:
    """One rank as an int, which is cheaper by far than a set and the shape of most entries, or the set."""
    if isinstance(text, str) and len(text) < 7 and text.isdigit() and text.isascii() and not (text[0] == "0" != text):
        return int(text)
    return Idset.parse(text)


def _entry_fault(path: str, item: object, fault: Exception) -> InvalidValue:
    """Return the fault of one entry in words, looked for only once there is one."""
    if not isinstance(item, dict):
        return InvalidValue(f"{path} must be an object with rank and children, not {kind_of(item)}")
    missing = [key for key in ("rank", "children") if key not in item]
    if missing:
        return InvalidValue(f"{path} has no {missing[0]}, which RFC 20 requires")
    try:
        Idset.parse(item["rank"])
    except InvalidValue as wrong:
        return named(f"{path}.rank", wrong)
    try:
        Children.parse(item["children"], item.get("amounts"))
    except InvalidValue as wrong:
        return named(path, wrong)
    return InvalidValue(f"{path}: {fault}")


# ---- parts


class PartsByRank:
    """The drained children of each target that has any."""

    __slots__ = ("of",)

    def __init__(self, of: Mapping[int, Children]) -> None:
        self.of = of

    def __bool__(self) -> bool:
        return bool(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartsByRank) and (self is other or self.of == other.of)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.of)))

    def __repr__(self) -> str:
        return f"PartsByRank({self.to_json()!r})"

    def changed(self, other: PartsByRank) -> Idset:
        """Return the targets of which the two do not have the same parts."""
        ranks = self.of.keys() | other.of.keys()
        return Idset.of([rank for rank in ranks if self.of.get(rank) != other.of.get(rank)])

    def replaced(self, of: Mapping[int, Children]) -> PartsByRank:
        """Return the parts with these of some targets in the place of those before; empty ones for none."""
        found = dict(self.of)
        for rank, parts in of.items():
            if parts:
                found[rank] = parts
            else:
                found.pop(rank, None)
        return PartsByRank(found)

    def renumbered(self, ranks: Mapping[int, int]) -> PartsByRank:
        """Return the parts with other ranks in the place of these."""
        return PartsByRank({ranks.get(rank, rank): parts for rank, parts in self.of.items()}) if ranks else self

    def to_json(self) -> list[dict[str, Any]]:
        """Return the parts as an R_lite."""
        return print_entries(self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """Return the parts as entries of an R_lite."""
        alike: dict[int, tuple[list[int], Children]] = {}  # by identity: equal ones are mostly the same
        for rank, children in self.of.items():
            alike.setdefault(id(children), ([], children))[0].append(rank)
        return merge([(Idset.of(ranks), children) for ranks, children in alike.values()]).entries

    @classmethod
    def parse(cls, rlite: object) -> PartsByRank:
        """Return the parts that `to_json` gave. Raises InvalidValue naming the part that is wrong."""
        return cls({rank: entry.children for entry in parse_entries(rlite).entries for rank in entry.ranks})


NO_PARTS: Final = PartsByRank({})
