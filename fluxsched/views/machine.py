"""The machine by `resource.watch`: the state of each target, its word and colours, its use; and the map in characters.

The map shows two targets a cell, one above the other, where the terminal has half blocks. A line is runs of text with
the words of the states above and below, and who prints them chooses the colours (`kind_words`). A map that would not
fit shows several targets in a place: the gravest state that at least one in TROUBLE_SHARE of them has, else how much of
their cores is in use on the whole. It is drawn in time linear in targets.

Law: STATES, the states' words, colours and signs, is in order of gravity, gravest first, and has the words of
`instance.metrics` and `resource.watch`. Colours differ in lightness, too, so that they can be told apart without red or
green; signs are one column wide. No object a target: states and cores in use are partitions of the ranks, one idset a
value; an answer costs what it names. `snapshot` is for a new viewer, `apply` returns the delta for those who have
it; the rule is in `feed.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, groupby
from typing import Any, Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.rlite import Entry
from fluxsched.core.text import printable
from fluxsched.protocol.messages.instance import USABLE
from fluxsched.views.words import duration_text, moment_text, users_text


class TargetState(NamedTuple):
    """Look of a state: by its word, on a light or a dark ground, on a terminal of 256 colours, without colour."""

    word: str
    meaning: str
    light: str
    dark: str
    terminal: int
    sign: str


STATES: tuple[TargetState, ...] = (
    TargetState("lost", "its host is considered gone for good", "#b0305c", "#e8769b", 168, "L"),
    TargetState("excluded", "withdrawn from all schedulers", "#b9bfc7", "#555d68", 240, "x"),
    TargetState("offline", "its agent is not connected", "#3f4650", "#8b95a1", 245, "o"),
    TargetState("draining", "drained, while a job still holds it", "#f0b95c", "#c98a1f", 214, "d"),
    TargetState("drained", "out of service", "#c4560a", "#f08a3c", 166, "D"),
    TargetState("torpid", "its agent is silent", "#8a6fc0", "#b49be6", 140, "t"),
    TargetState("leaving", "on its way to another group", "#c08fd0", "#8f5ca3", 133, "l"),
    TargetState("spare", "stands by to replace another one", "#7fb7b0", "#3f7d78", 73, "s"),
    TargetState("allocated", "a job holds it", "#1f6fb5", "#58a6e8", 32, "A"),
    TargetState("free", "no job holds it", "#d9e8d3", "#2c4a3a", 151, "."),
)

WORDS: tuple[str, ...] = tuple([state.word for state in STATES])
USED = USABLE
"""The states of a target that works: the share of its cores in use says more than they do."""
PARTLY_SIGN = "a"
"""Sign of a target that has cores in use and free ones."""
_BY_WORD = {state.word: state for state in STATES}


def state_named(word: str) -> TargetState:
    """Return the look of a state; one that an instance newer than this has is shown as itself, in grey."""
    return _BY_WORD.get(word) or TargetState(word, "", "#7f8791", "#7f8791", 244, "?")


def states_table() -> list[dict[str, Any]]:
    """Return the table for a page: word, meaning, colours and sign of each state, and whether jobs may be put there."""
    return [
        {
            "word": one.word,
            "meaning": one.meaning,
            "light": one.light,
            "dark": one.dark,
            "sign": one.sign,
            "usable": one.word in USABLE,
        }
        for one in STATES
    ]


# ---- the live machine

OUT_OF_USE = frozenset(("drains", "parts", "withheld"))
"""Keys of an answer from which the rows of drained targets are made."""

SECTIONS_MAX = 256
"""Parts of one arrangement; targets beyond are in one part, `others`."""
PROGRAM_PREFIX = "fluxsched:"
"""Beginning of the users of drains that programs of the site made (rfc/health.md): `health`, `prolog`, `epilog`."""
ARRANGEMENTS = ("group", "property", "host", "switch")
_DIGITS_AT_END = re.compile(r"[0-9]+$")


class MapSection(NamedTuple):
    """Targets that are shown together, under a title."""

    title: str
    ranks: Idset


class TargetParts:
    """Targets by a value, each in one part: its state, or its cores in use."""

    def __init__(self) -> None:
        self.parts: dict[str, Idset] = {}

    def move_targets(self, moved: Mapping[str, str]) -> None:
        """Set these values of these targets."""
        to = {value: Idset.parse(text) for value, text in moved.items()}
        targets = EMPTY
        for ranks in to.values():
            targets |= ranks
        for value, ranks in [*self.parts.items()]:
            if not ranks.isdisjoint(targets):
                self.parts[value] = ranks - targets
        for value, ranks in to.items():
            self.parts[value] = self.parts.get(value, EMPTY) | ranks
        self.parts = {value: ranks for value, ranks in self.parts.items() if ranks}

    def texts(self) -> dict[str, str]:
        """Return the ranks of each value as text for JSON."""
        return {value: str(ranks) for value, ranks in self.parts.items()}

    def counts(self) -> dict[str, int]:
        """Return the number of targets with each value."""
        return {value: len(ranks) for value, ranks in self.parts.items()}

    def total(self) -> int:
        """Return the sum over all targets, of numbers."""
        return sum([int(value) * len(ranks) for value, ranks in self.parts.items()])


class LiveMachine:
    """The picture, empty before the first answer."""

    def __init__(self) -> None:
        self.resources = EMPTY_R
        self.states = TargetParts()
        self.busy = TargetParts()
        """Targets by cores in use; a target that has none in use is in none, or in "0"."""
        self.busy_gpus = TargetParts()
        self.groups: Sequence[Mapping[str, Any]] = ()
        self.drained: Sequence[Mapping[str, Any]] = ()
        """Rows of drained targets and parts of targets, the latest drain first; see `_drained_rows`."""
        self.outages: Sequence[Mapping[str, Any]] = ()
        """Planned outages as `resource.outage-list` has them, with `hosts`, and `for`: names of users."""
        self.made_up = EMPTY
        self._drains: Mapping[str, Any] = {}
        self._parts: Sequence[Mapping[str, Any]] = ()
        self._withheld: Sequence[Mapping[str, Any]] = ()
        self.spares = EMPTY
        self.replaced: Sequence[Mapping[str, Any]] = ()
        """Spares in service, as in `resource.status`."""
        self._r: Mapping[str, Any] = {}
        self._by_place: dict[str, list[MapSection]] = {}

    def apply(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        """Take an answer; the change for viewers, or None if they need the whole anew, as when R has changed."""
        is_new = "R" in answer
        if is_new:
            self._define(answer["R"])
        for name in ("states", "busy", "busy_gpus"):
            if name in answer:
                getattr(self, name).move_targets(answer[name])
        self.groups = answer.get("groups", self.groups)
        self._take_limits(answer)
        if "made_up" in answer:
            self.made_up = Idset.parse(answer["made_up"])
        if "spares" in answer:
            self.spares = Idset.parse(answer["spares"])
        self.replaced = answer.get("replaced", self.replaced)
        told = {key: value for key, value in answer.items() if key not in OUT_OF_USE}
        return None if is_new else {**told, **self._sums(answer)}

    def _take_limits(self, answer: Mapping[str, Any]) -> None:
        """Take what may not be used, now or later: of an instance, or as another picture has it."""
        if "drained" in answer:
            self.drained = answer["drained"]
        elif answer.keys() & OUT_OF_USE:
            self._drains, self._parts = answer.get("drains", self._drains), answer.get("parts", self._parts)
            self._withheld = answer.get("withheld", self._withheld)
            self.drained = _drained_rows(self._drains, [*self._parts, *self._withheld])
        if answer.keys() & {"R", *OUT_OF_USE}:
            self.drained = self._with_hosts(self.drained)
        if answer.keys() & {"R", "outages"}:
            outages = [{**row, "for": users_text(row)} for row in answer.get("outages", self.outages)]
            self.outages = self._with_hosts(outages)

    def _with_hosts(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        named = self.resources.named
        return [{**row, "hosts": named(Idset.parse(row["targets"]))} for row in rows]

    def limits_of(self, ranks: Idset) -> list[str]:
        """Return a text for each drain and planned outage of some of these targets."""
        return [
            text(row)
            for rows, text in ((self.drained, drain_text), (self.outages, outage_text))
            for row in rows
            if not Idset.parse(row["targets"]).isdisjoint(ranks)
        ]

    def _define(self, described: Mapping[str, Any]) -> None:
        self._r = described
        self.resources = ResourceSet.parse(described)
        for partition in (self.states, self.busy, self.busy_gpus):
            kept = {value: ranks & self.resources.ranks for value, ranks in partition.parts.items()}
            partition.parts = {value: ranks for value, ranks in kept.items() if ranks}
        self._by_place = {}

    def only(self, ranks: Idset) -> LiveMachine:
        """Return a picture of these targets alone."""
        found = LiveMachine()
        found.apply(self.snapshot())
        found._define(self.resources.restrict(ranks).to_json())
        found.made_up &= ranks
        return found

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot for a new viewer."""
        return {
            "R": self._r,
            "states": self.states.texts(),
            "busy": self.busy.texts(),
            "busy_gpus": self.busy_gpus.texts(),
            "drained": self.drained,
            "outages": self.outages,
            "groups": list(self.groups),
            "made_up": str(self.made_up),
            "spares": str(self.spares),
            "replaced": list(self.replaced),
            "counts": self.states.counts(),
            "cores": {"total": self.resources.count("core"), "in_use": self.busy.total()},
            "gpus": {"total": self.resources.count("gpu"), "in_use": self.busy_gpus.total()},
            "sections": self._sections(),
        }

    def _sums(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sums that follow from the contents of an answer."""
        found: dict[str, Any] = {}
        if "states" in answer:
            found["counts"] = self.states.counts()
        if "busy" in answer:
            found["cores"] = {"total": self.resources.count("core"), "in_use": self.busy.total()}
        if "busy_gpus" in answer:
            found["gpus"] = {"total": self.resources.count("gpu"), "in_use": self.busy_gpus.total()}
        if "groups" in answer:
            found["sections"] = self._sections()
        if answer.keys() & OUT_OF_USE:
            found["drained"] = self.drained
        if "outages" in answer:
            found["outages"] = self.outages
        return found

    def _sections(self) -> dict[str, list[list[str]]]:
        return {by: [[one.title, str(one.ranks)] for one in self.arranged(by)] for by in ARRANGEMENTS}

    def arranged(self, by: str) -> list[MapSection]:
        """All targets in parts: by `group`, by what `property` they have, by `host` name without its last number, by
        `switch` of the lowest level that has no more switches than there can be parts.
        """
        if by == "group":
            return bounded(self._by_group())
        if by not in self._by_place:  # made when it is wanted: of 131,072 hosts it takes a tenth of a second
            self._by_place[by] = bounded(_BY_PLACE[by](self.resources))
        return self._by_place[by]

    def _by_group(self) -> Iterator[MapSection]:
        left = self.resources.ranks
        for group in self.groups:
            if ranks := left & Idset.parse(group["targets"]):
                left -= ranks
                yield MapSection(group["name"], ranks)
        if left:
            yield MapSection("no group", left)


def _users_of(drain: Mapping[str, Any]) -> str:
    """Return who has drained a target, each user once."""
    users = [each.get("user") for each in drain.get("reasons") or [drain]]
    return ", ".join(dict.fromkeys([user.removeprefix(PROGRAM_PREFIX) for user in users if user]))


def _drained_rows(drains: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `resource.status` drains as rows: `targets`, `parts` (a text, empty for whole targets), `cores` (of those
    in R), `state`, `timestamp`, `until` (None: open), `user`, `reason`, and `reasons` if there are several.
    """
    rows = [{"targets": targets, **info} for targets, info in drains.items()] + [dict(part) for part in parts]
    return sorted(
        [
            {
                "targets": row["targets"],
                "parts": _parts_text(row),
                "cores": (row.get("cores") or "") if row.get("state") != "withheld" else "",
                "state": row.get("state") or "drained",
                "timestamp": row.get("timestamp") or 0.0,
                "until": row.get("until"),
                "user": _users_of(row),
                "reason": row.get("reason") or "",
            }
            | ({"reasons": row["reasons"]} if row.get("reasons") else {})
            for row in rows
        ],
        key=lambda row: (-float(row["timestamp"]), Idset.parse(row["targets"]).min()),
    )


def _parts_text(row: Mapping[str, Any]) -> str:
    ids = [(word, Idset.parse(row.get(key) or "")) for key, word in (("cores", "core"), ("gpus", "GPU"))]
    return ", ".join(f"{word if len(each) == 1 else f'{word}s'} {each}" for word, each in ids if each)


def drain_text(row: Mapping[str, Any]) -> str:
    """Return a drain in words, without its targets: `cores 4-7 drained by kim: fan`."""
    parts, user = row["parts"] and f"{row['parts']} ", row["user"] and f" by {row['user']}"
    until = f" until {moment_text(row['until'])}" if row["until"] else ""
    return f"{parts}{row['state']}{user}{until}: {row['reason'] or 'no reason'}"


def outage_text(row: Mapping[str, Any]) -> str:
    """Return a planned outage in words, without its targets."""
    every = f", every {duration_text(row['every'])}" if row.get("every") else ""
    times = f"{moment_text(row['from'])} to {moment_text(row['until'])}{every}"
    return f"{outage_title(row)} {times}" + (f": {row['reason']}" if row.get("reason") else "")


def outage_title(row: Mapping[str, Any]) -> str:
    """Return the kind and name of a planned outage, and for whom it is reserved: `reservation course for ann,bob`."""
    if not row.get("reservation"):
        return f"outage {row['name']}"
    return f"reservation {row['name']} for {users_text(row)}"


def bounded(sections: Iterator[MapSection]) -> list[MapSection]:
    """At most SECTIONS_MAX: what is beyond is one section."""
    found = list(sections)
    if len(found) <= SECTIONS_MAX:
        return found
    others = EMPTY
    for one in found[SECTIONS_MAX - 1 :]:
        others |= one.ranks
    return [*found[: SECTIONS_MAX - 1], MapSection("others", others)]


def _by_property(resources: ResourceSet) -> Iterator[MapSection]:
    """Yield a section for each combination of properties that some targets have, in order of their ranks."""
    parts: list[tuple[tuple[str, ...], Idset]] = [((), resources.ranks)]
    for name, ranks in sorted(resources.properties.items()):
        if len(parts) > SECTIONS_MAX:
            break  # each host has a property of its own: that is no arrangement
        parts = [
            (names, piece)
            for had, whole in parts
            for names, piece in (((*had, name), whole & ranks), (had, whole - ranks))
            if piece
        ]
    known = [part for part in parts if part[1]]  # there is none before the instance has answered
    for names, ranks in sorted(known, key=lambda part: part[1].min()):
        yield MapSection(", ".join(names) or "no property", ranks)


def _by_host(resources: ResourceSet) -> Iterator[MapSection]:
    """Yield a section for each name that hosts have before their last number, in order of ranks; all in one without
    names.
    """
    if not resources.nodelist.hosts:
        if resources.ranks:
            yield MapSection("targets", resources.ranks)
        return
    found: dict[str, list[int]] = {}
    for rank, host in zip(resources.ranks, resources.nodelist.hosts, strict=False):
        found.setdefault(_DIGITS_AT_END.sub("", host) or host, []).append(rank)
    for ranks in found.values():
        yield MapSection(_title(resources, Idset.of(ranks)), Idset.of(ranks))


def _by_switch(resources: ResourceSet) -> Iterator[MapSection]:
    """Yield a section for each switch of one level, in order of ranks; those under no switch are the last one."""
    topology = resources.topology
    if not topology or not resources.nodelist.hosts:
        if resources.ranks:
            yield MapSection("no switch", resources.ranks)
        return
    chains: dict[tuple[str, ...], list[int]] = {}
    for rank, host in zip(resources.ranks, resources.nodelist.hosts, strict=False):
        leaf = topology.leaf_of.get(host)
        chains.setdefault(() if leaf is None else topology.chain(leaf), []).append(rank)
    alone = chains.pop((), [])
    found: dict[str, list[int]] = {}
    for level in range(max(map(len, chains), default=0)):
        found = {}
        for chain, ranks in chains.items():
            found.setdefault(chain[min(level, len(chain) - 1)], []).extend(ranks)
        if len(found) < SECTIONS_MAX:
            break
    for name, ranks in found.items():
        yield MapSection(name, Idset.of(ranks))
    if alone:
        yield MapSection("no switch", Idset.of(alone))


_BY_PLACE: Final[Mapping[str, Callable[[ResourceSet], Iterator[MapSection]]]] = {
    "property": _by_property, "host": _by_host, "switch": _by_switch,
}  # fmt: skip


def _title(resources: ResourceSet, ranks: Idset) -> str:
    """`node[0-63]`: a few characters for any number of hosts, holes or not."""
    first, last = resources.host(ranks.min()), resources.host(ranks.max())
    stem, low, high = (_DIGITS_AT_END.sub("", first), *(_DIGITS_AT_END.search(host) for host in (first, last)))
    return first if first == last or not low or not high else f"{stem}[{low[0]}-{high[0]}]"


# ---- the map in characters

LEVELS = ("free", "used-25", "used-50", "used-75", "allocated")
"""Kinds of targets that work: by the share of their cores in use, none, up to each quarter, all."""
TROUBLES = tuple([state.word for state in STATES if state.word not in USED])
"""The other kinds, gravest first."""
KINDS = (*LEVELS, *TROUBLES)
TROUBLE_SHARE = 8
"""Number of targets in one place among which one in trouble suffices to show the place as in trouble."""
TOGETHER_MAX = 1 << 17
"""Targets in one place at most."""
TERMINAL = {"used-25": 66, "used-50": 67, "used-75": 68}
"""Colours of 256 between those of free and allocated."""
_NONE = 0xFF
"""Level of a place without a target, which the last line of a section may have."""
_ALLOCATED = len(LEVELS) - 1


class MapRun(NamedTuple):
    """Equal cells of a line: their text, the kind of what is above, and of what is below in a half block."""

    text: str
    above: str = ""
    below: str = ""


class _MapScale(NamedTuple):
    """Scale of a place on the map: columns, places one above the other in a line, targets in a place."""

    columns: int
    stacked: int
    together: int


class _MapBlock(NamedTuple):
    """The places of one section: its first line on the map and its targets."""

    line: int
    lines: int
    ranks: Idset


class MapDrawing:
    """A drawn map, and which targets are where."""

    def __init__(
        self, lines: list[list[MapRun]], blocks: Sequence[_MapBlock], scale: _MapScale, width: int, unnamed: int = 0
    ) -> None:
        self.lines = lines
        self.unnamed = unnamed
        """Number of parts of the machine that have no room for their names; they are drawn as one."""
        self.together = scale.together
        """Number of targets in one place."""
        self._blocks = blocks
        self._scale = scale
        self._per_row = max(1, width // scale.columns)

    def ranks_at(self, x: int, y: int, half: int | None = None) -> Idset:
        """Return the targets in a cell; `half`: those above (0) or below (1) only."""
        columns, stacked, together = self._scale
        for block in self._blocks:
            if block.line <= y < block.line + block.lines and 0 <= x // columns < self._per_row:
                found = EMPTY
                for row in range(stacked) if half is None or stacked == 1 else (half,):
                    place = ((y - block.line) * stacked + row) * self._per_row + x // columns
                    found |= _between(block.ranks, place * together, together)
                return found
        return EMPTY

    def place_of(self, rank: int) -> tuple[int, int, int] | None:
        """Column and line of a target, and which half; None if it is not on the map."""
        columns, stacked, together = self._scale
        for block in self._blocks:
            if rank in block.ranks:
                row, at = divmod(block.ranks.index(rank) // together, self._per_row)
                return at * columns, block.line + row // stacked, row % stacked
        return None

    def neighbour(self, x: int, y: int, half: int, dx: int, dy: int) -> int | None:
        """Return the first target of the cell so far away, or of the last one on the way; None: there is none.

        To the sides it goes over the edge, up and down over titles.
        """
        columns = self._scale.columns
        at = self._block_at(y)
        if at is None:
            return None
        if dx:
            ranks = self.ranks_at(x, y)
            order = self._blocks[at].ranks
            index = order.index(ranks.min()) + dx * max(1, self._scale.together)
            row_x = x + dx * columns
            beside = self.ranks_at(row_x, y)
            if row_x >= 0 and beside:
                return beside.min()
            return order.nth(max(0, min(index, len(order) - 1)))
        wanted = y + dy
        step = 1 if dy > 0 else -1
        last = max(block.line + block.lines for block in self._blocks)
        wanted = max(0, min(wanted, last - 1))
        while 0 <= wanted < last:
            for column in range(x, -1, -columns):
                if ranks := self.ranks_at(column, wanted):
                    return ranks.min()
            wanted += step
        return None

    def _block_at(self, y: int) -> int | None:
        return next((at for at, one in enumerate(self._blocks) if one.line <= y < one.line + one.lines), None)


def kind_words(word: str) -> tuple[str, int, str]:
    """Meaning, colour of a terminal of 256 colours, and sign of one of KINDS."""
    if word in TERMINAL:
        return f"{word.removeprefix('used-')} % or less of its cores in use", TERMINAL[word], PARTLY_SIGN
    state = state_named(word)
    return state.meaning, state.terminal, state.sign


def draw_map(
    machine: LiveMachine, by: str, width: int, lines_max: int, *, is_colourful: bool, is_unicode: bool = True
) -> MapDrawing:
    """Return the map in at most `lines_max` lines of `width` columns; signs instead of blocks where there is no
    colour.
    """
    sections, unnamed = machine.arranged(by), 0
    has_blocks = is_colourful and is_unicode
    scale, has_titles = _scale(sections, max(1, width), max(1, lines_max), has_blocks)
    if not has_titles:
        unnamed = len(sections) if len(sections) > 1 else 0
        everything = EMPTY
        for section in sections:
            everything |= section.ranks
        sections = [MapSection("", everything)] if everything else []
    kinds = _kinds(machine)
    lines: list[list[MapRun]] = []
    blocks = []
    for section in sections:
        if has_titles:
            lines.append([MapRun(_heading(section, width))])
        rows = _rows(kinds, section.ranks, scale, width)
        drawn = [_line(rows[at : at + scale.stacked], scale, has_blocks) for at in range(0, len(rows), scale.stacked)]
        blocks.append(_MapBlock(len(lines), len(drawn), section.ranks))
        lines += drawn
    return MapDrawing(lines[:lines_max], blocks, scale, width, unnamed)


def _heading(section: MapSection, width: int) -> str:
    return printable(f"{section.title}  {len(section.ranks):,}")[:width]


def _between(ranks: Idset, first: int, count: int) -> Idset:
    if first >= len(ranks):
        return EMPTY
    low = ranks.nth(first)
    high = ranks.nth(min(first + count, len(ranks)) - 1)
    return Idset(ranks.mask & ((1 << high + 1) - (1 << low)))


def _scale(sections: Sequence[MapSection], width: int, lines_max: int, has_blocks: bool) -> tuple[_MapScale, bool]:
    """Return the largest places with which all targets fit, and whether titles fit, too."""
    stacked = 2 if has_blocks else 1
    scales = [_MapScale(4, 1, 1), _MapScale(2, 1, 1), _MapScale(1, stacked, 1)]
    together = 2
    while together < TOGETHER_MAX:
        scales.append(_MapScale(1, stacked, together))
        together += max(1, together // 4)
    sizes = [len(section.ranks) for section in sections]
    titles = len(sizes) if len(sizes) > 1 else 0
    for scale in scales:
        if titles + sum(_lines(size, scale, width) for size in sizes) <= lines_max:
            if titles and scale.together > 1 and titles * 3 > lines_max:
                break  # more titles than map
            return scale, titles > 0
    total = sum(sizes)
    return next((scale for scale in scales if _lines(total, scale, width) <= lines_max), scales[-1]), False


def _lines(targets: int, scale: _MapScale, width: int) -> int:
    places = -(-targets // scale.together)
    rows = -(-places // max(1, width // scale.columns))
    return -(-rows // scale.stacked)


def _kinds(machine: LiveMachine) -> bytes:
    """Return the kind of each rank, as an index of KINDS, up to the highest rank there is."""
    resources = machine.resources
    if not resources.ranks:
        return b""
    size = resources.ranks.max() + 1
    total = 0
    used = machine.states.parts.get("allocated", EMPTY)
    left = used
    for cores, ranks in machine.busy.parts.items():
        for level, part in _levels(resources.entries, int(cores), ranks & used):
            total += _spread(part, level, size)
            left -= part
    total += _spread(left, _ALLOCATED, size)  # held, and nothing is said of its cores
    for word, ranks in machine.states.parts.items():
        if word not in USED:
            at = KINDS.index(word) if word in KINDS else KINDS.index("lost")
            total += _spread(ranks & resources.ranks, at, size)
    return total.to_bytes(size, "little")


def _levels(entries: Sequence[Entry], cores: int, ranks: Idset) -> Iterator[tuple[int, Idset]]:
    """Yield levels with their targets: of these targets, each of which has `cores` cores in use."""
    for entry in entries:
        part = ranks & entry.ranks
        if part:
            has = entry.children.count("core")
            share = _ALLOCATED if cores >= has else 1 + min(2, (4 * cores - 1) // has) if cores else 0
            yield share, part


def _spread(ranks: Idset, value: int, size: int) -> int:
    """Return an int whose byte number `rank` is `value` for each of these ranks: sums of them are tables."""
    if not value or not ranks:
        return 0
    bits = f"{ranks.mask:0{size}b}".encode()[-size:]
    table = bytes.maketrans(b"01", bytes((0, value)))
    return int.from_bytes(bits.translate(table), "big")


def _rows(kinds: bytes, ranks: Idset, scale: _MapScale, width: int) -> list[bytes]:
    """Return the kinds of the places of a section, one row a piece, all of the same length."""
    low, high = ranks.min(), ranks.max() + 1
    piece = kinds[low:high]
    if len(ranks) < high - low:
        bits = f"{ranks.mask >> low:0{high - low}b}".encode()[::-1].translate(bytes.maketrans(b"01", b"\0\1"))
        piece = bytes(compress(piece, bits))
    if scale.together > 1:
        piece = bytes([_common(piece[at : at + scale.together]) for at in range(0, len(piece), scale.together)])
    per_row = max(1, width // scale.columns)
    rows = [piece[at : at + per_row] for at in range(0, len(piece), per_row)]
    rows[-1] += bytes((_NONE,)) * (per_row - len(rows[-1]))
    if len(rows) % scale.stacked:
        rows.append(bytes((_NONE,)) * per_row)
    return rows


def _common(kinds: bytes) -> int:
    """Return the kind of several targets in one place."""
    first = kinds[0]
    if kinds.count(first) == len(kinds):
        return first
    for kind in range(len(LEVELS), len(KINDS)):
        if kinds.count(kind) * TROUBLE_SHARE >= len(kinds):
            return kind
    counts = [kinds.count(level) for level in range(len(LEVELS))]
    return round(sum(level * count for level, count in enumerate(counts)) / max(1, sum(counts)))


def _line(rows: Sequence[bytes], scale: _MapScale, has_blocks: bool) -> list[MapRun]:
    if scale.stacked == 2:
        pairs = groupby(zip(rows[0], rows[1], strict=True))
        return [_half(above, below, len(list(same))) for (above, below), same in pairs]
    runs = []
    for kind, same in groupby(rows[0]):
        count = len(list(same))
        if kind == _NONE:
            runs.append(MapRun(" " * scale.columns * count))
            continue
        filled = max(1, scale.columns - 1)
        block = "█" * filled if has_blocks else kind_words(KINDS[kind])[2]
        runs.append(MapRun(block.ljust(scale.columns) * count, KINDS[kind]))
    return runs


def _half(above: int, below: int, count: int) -> MapRun:
    if above == _NONE and below == _NONE:
        return MapRun(" " * count)
    if below == _NONE:
        return MapRun("▀" * count, KINDS[above])
    if above == below:
        return MapRun("█" * count, KINDS[above])
    return MapRun("▀" * count, KINDS[above], KINDS[below])
