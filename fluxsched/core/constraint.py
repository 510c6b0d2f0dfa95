"""Targets that are meant: constraints of jobs (RFC 31), the queries that people type after `--requires` (RFC 35), which
are compiled to them, and the lists of targets that administrators and users write.

Which targets a job accepts is decided for all targets at once by set algebra. In a query, terms side by side are joined
by `and`, which binds tighter than `or`; `!` is short for `not`, `-` negates one term.

Law: a constraint is checked whole when it is parsed, within named limits; matching it can neither fail nor look at a
single rank. A query is judged by its syntax alone, with the position of the fault; what its values mean is the
constraint's to decide.

TARGETS are a list of ranks (RFC 22), hosts (RFC 29) and named sets: `all`, `property:NAME`, `group:NAME`, `queue:NAME`
or `switch:NAME`. Properties and switches are those of the resource set; groups and queues are known to an instance
alone, which passes a lookup for them. All offenders are named at once, so that mistakes in a long list are fixed in one
go; nothing is accepted in part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import LOCAL_PREFIX, ResourceSet
from fluxsched.core.text import kind_of, some_of, there_are
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded

TEXT_CHARS_MAX = 1 << 16
"""The longest query: half of what one command line argument may have."""

NESTING_MAX = 32
"""Parentheses and negations inside each other: as deep as a constraint may be, and a bound to the recursion."""

_OPERATORS: Final[Mapping[str, str]] = {
    "properties": "properties",
    "property": "properties",
    "hostlist": "hostlist",
    "hosts": "hostlist",
    "host": "hostlist",
    "ranks": "ranks",
    "rank": "ranks",
}
_WORDS: Final[Mapping[str, str]] = {"and": "&", "&&": "&", "&": "&", "or": "|", "||": "|", "|": "|", "not": "!"}
_TOKEN: Final = re.compile(r"""\s*(&{1,2}|\|{1,2}|[()!-]|(?:[^()|&\s"'!]|"[^"]*"|'[^']*')+)""")
_QUOTES: Final = re.compile(r""""([^"]*)"|'([^']*)'""")
_Object = dict[str, object]


def parse_query(text: str) -> _Object:
    """Return the RFC 31 object of a query such as `ssd & !gpu | host:node[0-3] rank:0-3`; a bare term is a property.

    Commas separate properties that are all required. Raises InvalidValue naming the position of a syntax error,
    LimitExceeded above TEXT_CHARS_MAX or NESTING_MAX.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise LimitExceeded(f"constraint of {len(text)} characters is above the limit of {TEXT_CHARS_MAX}")
    reader = _QueryParser(_tokens(text))
    parsed = reader.alternatives(0)
    reader.expect("")
    return parsed


def _tokens(text: str) -> list[tuple[str, int]]:
    """Tokens with their positions, `and or not` as signs, `""` at the end."""
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidValue(f"constraint: unclosed quote {text[at:].lstrip()[:20]!r} at position {at}")
        tokens.append((_WORDS.get(match[1], match[1]), match.start(1)))
        at = match.end()
    return [*tokens, ("", end)]


class _QueryParser:
    """Recursive descent, a method a precedence."""

    def __init__(self, tokens: list[tuple[str, int]]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> str:
        return self._tokens[self._next][0]

    def _skip(self, *signs: str) -> bool:
        found = self._peek() in signs
        self._next += found
        return found

    def expect(self, sign: str) -> None:
        token, at = self._tokens[self._next]
        if token != sign:
            wanted = repr(sign) if sign else "the end"
            raise InvalidValue(f"constraint: {token[:40]!r} at position {at} where {wanted} should be")
        self._next += 1

    def alternatives(self, depth: int) -> _Object:
        terms = [self._conjunction(depth)]
        while self._skip("|"):
            terms.append(self._conjunction(depth))
        return terms[0] if len(terms) == 1 else {"or": terms}

    def _conjunction(self, depth: int) -> _Object:
        terms = [self._negation(depth)]
        while self._skip("&") or self._peek() not in ("|", ")", ""):
            terms.append(self._negation(depth))
        return terms[0] if len(terms) == 1 else {"and": terms}

    def _negation(self, depth: int) -> _Object:
        if depth > NESTING_MAX:
            at = self._tokens[self._next][1]
            raise LimitExceeded(f"constraint: nested deeper than the limit of {NESTING_MAX} at position {at}")
        if self._skip("!"):
            return {"not": [self._negation(depth + 1)]}
        if self._skip("("):
            inside = self.alternatives(depth + 1)
            self.expect(")")
            return inside
        return {"not": [self._term()]} if self._skip("-") else self._term()

    def _term(self) -> _Object:
        token, at = self._tokens[self._next]
        if token in ("", "&", "|", "!", "(", ")", "-"):
            raise InvalidValue(f"constraint: {token or 'end'!r} at position {at} where a term should be")
        self._next += 1
        name, colon, operand = token.partition(":") if token[0] not in "\"'" else ("", "", "")
        operator = _OPERATORS.get(name) if colon else "properties"
        if operator is None:
            known = ", ".join(_OPERATORS)
            raise InvalidValue(f"constraint: unknown operator {name[:40]!r} at position {at}: use {known}")
        value = _QUOTES.sub(lambda match: match[1] or match[2] or "", operand if colon else token)
        if not value:
            raise InvalidValue(f"constraint: {token[:40]!r} at position {at} has no value")
        return {operator: value.split(",") if operator == "properties" else [value]}


# ---- constraints

DEPTH_MAX = 32
"""Operators inside operators: people write three; bounds every recursion here."""

TERMS_MAX = 1024
"""Operators and values in all: bounds one match to a millisecond or so, the hosts named aside."""

WEIGHT_MAX = HOSTS_MAX
"""Hosts named, plus 64-byte words of rank sets, in all: some 20 MiB, however short the text that names them."""

Value: TypeAlias = "str | Hostlist | Idset | Constraint"

_ILLEGAL_IN_PROPERTY: Final = re.compile("[!&'\"^`|()]")  # RFC 20


@dataclass(frozen=True, slots=True)
class Constraint:
    """One RFC 31 operator and its values: names, hostlists, idsets or further constraints. Hashable; use `parse`."""

    operator: str
    values: tuple[Value, ...]

    @classmethod
    def parse(cls, obj: object) -> Constraint:
        """Return the constraint of an RFC 31 object; several operators in one object must all match.

        Raises InvalidValue naming the part that is wrong, LimitExceeded above DEPTH_MAX, TERMS_MAX or WEIGHT_MAX.
        """
        return _ConstraintParser().constraint(obj, "constraint", 1)

    def to_json(self) -> dict[str, object]:
        """Return the RFC 31 object, `{}` for EVERYTHING; `parse` gives the same constraint back."""
        if self == EVERYTHING:
            return {}
        values = [value.to_json() if isinstance(value, Constraint) else str(value) for value in self.values]
        return {self.operator: values}

    def __str__(self) -> str:
        return _render(self)[0]

    def match(self, ranks: Idset, properties: Mapping[str, Idset], hosts: Callable[[str], Idset]) -> Idset:
        """Return the subset of `ranks` that this accepts; `properties` and `hosts` give the ranks of a name, in any
        superset.

        A property `name@suffix` counts as `name` too (RFC 20).
        """
        found = ranks
        match self.operator:
            case "and":
                for value in self.values:
                    found = _constraint(value).match(found, properties, hosts)
            case "or":
                found = ranks if not self.values else EMPTY
                for value in self.values:
                    found |= _constraint(value).match(ranks, properties, hosts)
            case "not":
                for value in self.values:
                    found = _constraint(value).match(found, properties, hosts)
                found = ranks - found
            case "properties":
                for name in map(str, self.values):
                    having = targets_with(name.removeprefix("^"), properties)
                    found = found - having if name[0] == "^" else found & having
            case _:
                found = ranks & _named(self.values, hosts)
        return found


EVERYTHING: Final = Constraint("and", ())
"""Matches every rank: `{}`, `{"and": []}` and `{"or": []}`."""


def parse_constraint_text(text: str) -> Constraint:
    """Return the constraint that a person wrote, such as `ssd & !(gpu | host:node[0-3]) rank:0-3`. Raises like
    `parse`.
    """
    return Constraint.parse(parse_query(text))


def _constraint(value: Value) -> Constraint:
    assert isinstance(value, Constraint), value  # the reader lets nothing else under and, or, not
    return value


def targets_with(name: str, properties: Mapping[str, Idset]) -> Idset:
    """Return the ranks that have a property, or one `name@suffix` (RFC 20)."""
    found, prefix = properties.get(name, EMPTY), name + "@"
    for other, ranks in properties.items():
        if other.startswith(prefix):
            found |= ranks
    return found


def _named(values: tuple[Value, ...], hosts: Callable[[str], Idset]) -> Idset:
    found = EMPTY
    for value in values:
        if isinstance(value, Idset):
            found |= value
        elif isinstance(value, Hostlist):
            for host in value:
                found |= hosts(host)
    return found


def _render(constraint: Constraint) -> tuple[str, int]:
    """Words for people, and how tightly they bind: 0 or, 1 and, 2 not and names."""
    values = constraint.values
    match constraint.operator:
        case "hostlist":
            return f"hosts {','.join(map(str, values)) or '(none)'}", 2
        case "ranks":
            return f"ranks {','.join(map(str, values)) or '(none)'}", 2
        case "properties":
            parts = [(re.sub(r"^\^", "not ", str(value)), 2) for value in values]
        case _:
            parts = [_render(_constraint(value)) for value in values]
    if constraint.operator == "not":
        inner, binding = _join(parts, "and")
        return (f"not {inner}" if binding == 2 else f"not ({inner})", 2) if parts else ("nothing", 2)
    return _join(parts, "or" if constraint.operator == "or" else "and")


def _join(parts: list[tuple[str, int]], word: str) -> tuple[str, int]:
    if not parts:
        return "anything", 2
    if len(parts) == 1:
        return parts[0]
    own = 0 if word == "or" else 1
    return f" {word} ".join([text if binding > own else f"({text})" for text, binding in parts]), own


class _ConstraintParser:
    """Reads one constraint and keeps count of what it has cost so far."""

    def __init__(self) -> None:
        self._terms = 0
        self._weight = 0

    def constraint(self, obj: object, path: str, depth: int) -> Constraint:
        if not isinstance(obj, Mapping):
            raise InvalidValue(f"{path}: a constraint must be an object of operators, not {kind_of(obj)}")
        if depth > DEPTH_MAX:
            raise LimitExceeded(f"{path[:80]}...: nested deeper than the limit of {DEPTH_MAX} operators")
        read = [self._operator(operator, values, path, depth) for operator, values in obj.items()]
        return read[0] if len(read) == 1 else Constraint("and", tuple(read))

    def _operator(self, operator: object, values: object, path: str, depth: int) -> Constraint:
        read = _READERS.get(operator) if isinstance(operator, str) else None
        if read is None:
            raise InvalidValue(f"{path}: unknown operator {str(operator)[:40]!r}: use {', '.join(_READERS)}")
        path = f"{path}.{operator}"
        if not isinstance(values, (list, tuple)):
            raise InvalidValue(f"{path}: values must be an array, not {kind_of(values)}")
        self._terms += 1 + len(values)
        if self._terms > TERMS_MAX:
            raise LimitExceeded(f"{path}: the constraint has over {TERMS_MAX} operators and values, the limit")
        if operator == "or" and not values:
            return EVERYTHING
        return Constraint(str(operator), tuple([read(self, v, f"{path}[{at}]", depth) for at, v in enumerate(values)]))

    def nested(self, value: object, path: str, depth: int) -> Value:
        return self.constraint(value, path, depth + 1)

    def property(self, value: object, path: str, depth: int) -> Value:
        name = _text(value, path).removeprefix("^")
        illegal = _ILLEGAL_IN_PROPERTY.search(name)
        if not name or illegal:
            what = f"has the illegal character {illegal[0]!r}" if illegal else "is empty"
            raise InvalidValue(f"{path}: property name {name[:40]!r} {what}")
        return str(value)

    def hostlist(self, value: object, path: str, depth: int) -> Value:
        text = _text(value, path)
        try:
            hosts = Hostlist.parse(text)
        except InvalidValue as error:
            raise type(error)(f"{path}: {error}") from None
        self._weigh(len(hosts), path)
        return hosts

    def ranks(self, value: object, path: str, depth: int) -> Value:
        text = _text(value, path)
        try:
            ranks = Idset.parse(text)
        except InvalidValue as error:
            raise type(error)(f"{path}: {error}") from None
        self._weigh(ranks.mask.bit_length() // 512, path)
        return ranks

    def _weigh(self, weight: int, path: str) -> None:
        self._weight += weight
        if self._weight > WEIGHT_MAX:
            raise LimitExceeded(f"{path}: the constraint names over {WEIGHT_MAX} hosts and ranks, the limit")


_READERS: Final[Mapping[str, Callable[[_ConstraintParser, object, str, int], Value]]] = {
    "properties": _ConstraintParser.property,
    "hostlist": _ConstraintParser.hostlist,
    "ranks": _ConstraintParser.ranks,
    "not": _ConstraintParser.nested,
    "or": _ConstraintParser.nested,
    "and": _ConstraintParser.nested,
}


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{path}: must be a string, not {kind_of(value)}")
    return value


# ---- targets

ALL: Final = "all"
"""The named set of all targets, also where a host is called so."""
PROPERTY, GROUP, QUEUE, SWITCH = "property", "group", "queue", "switch"
SET_KINDS: Final = (PROPERTY, GROUP, QUEUE, SWITCH)
"""Prefixes of named sets: no cluster is called so, since its name is the prefix of its hosts."""

LookUp: TypeAlias = Callable[[str, str], Idset]
"""Return the targets of a `group` or `queue`, by kind and name. Raises FluxschedError naming those that there are."""

_IDSET_CHARS: Final = frozenset("0123456789,-[]")


class NamedSet(NamedTuple):
    """One of SET_KINDS, or `all`, and a name, which `all` has not."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


class TargetList(NamedTuple):
    """TARGETS as they were written, whether there are such or not."""

    ranks: Idset
    hosts: Hostlist
    sets: tuple[NamedSet, ...]


def parse_targets(
    text: object, resources: ResourceSet, look_up: LookUp | None = None, among: Idset | None = None
) -> Idset:
    """Return the ranks that `text` names: those of idsets, all on each host of hostlists, and the members of sets.

    `among` limits sets to those targets to which a request can apply, such as what is drained; ranks and hosts are
    taken at their word. Raises InvalidValue naming all that `resources` and `look_up` do not know.
    """
    wanted, hosts, sets = split_targets(text)
    on_hosts, unknown = resources.ranks_on(hosts) if hosts else (EMPTY, [])
    members, faults = EMPTY, _unknown(wanted - resources.ranks, unknown, resources.ranks)
    for each in sets:
        try:
            members |= _members(each, resources, look_up)
        except FluxschedError as fault:
            faults.append(str(fault))
    if faults:
        raise InvalidValue("; ".join(faults))
    return wanted | on_hosts | (members if among is None else members & among)


def split_targets(text: object) -> TargetList:
    """Return the ranks, hosts and sets that `text` names. Raises InvalidValue.

    A part of digits, commas, hyphens and brackets alone is an idset, even where hosts have such names.
    """
    if not isinstance(text, str) or _IDSET_CHARS.issuperset(text):
        return TargetList(Idset.parse(text), Hostlist(), ())
    wanted, hosts, sets = EMPTY, list[str](), list[NamedSet]()
    for part in _parts(text):
        kind, colon, name = part.partition(":")
        if part == ALL or (colon and kind in SET_KINDS):
            if part != ALL and not name:
                raise InvalidValue(f"targets {part!r}: the name is missing, as in {kind}:NAME")
            sets.append(NamedSet(kind, name))
        elif part and _IDSET_CHARS.issuperset(part):
            wanted |= Idset.parse(part)
        else:
            hosts.append(part)
    return TargetList(wanted, Hostlist.parse(",".join(hosts)).unique() if hosts else Hostlist(), tuple(sets))


def _members(named: NamedSet, resources: ResourceSet, look_up: LookUp | None) -> Idset:
    if named.kind == ALL:
        return resources.ranks
    if named.kind == PROPERTY:
        found = targets_with(named.name, resources.properties) & resources.ranks
        if not found and named.name not in resources.properties:
            known = sorted(name for name in resources.properties if not name.startswith(LOCAL_PREFIX))
            remedy = f"the properties are {some_of(known)}" if known else "no target has any"
            raise InvalidValue(f"no target has property {named.name!r}: {remedy}")
        return found
    if named.kind == SWITCH:
        return _under(named.name, resources)
    if look_up is None:
        raise InvalidValue(f"{named}: only an instance knows its {named.kind}s; give ranks, hosts or property:NAME")
    return look_up(named.kind, named.name)


def _under(switch: str, resources: ResourceSet) -> Idset:
    """Return the targets under a switch, directly or by others. Raises InvalidValue if there is none of this name."""
    topology = resources.topology
    if switch not in topology.switches:
        raise InvalidValue(f"there is no switch {switch!r}: {there_are(sorted(topology.switches))}")
    leaves = {leaf for leaf in set(topology.leaf_of.values()) if switch in topology.chain(leaf)}
    return resources.ranks_on([host for host, leaf in topology.leaf_of.items() if leaf in leaves])[0]


def _parts(text: str) -> Iterator[str]:
    """Cut the text at the commas that are outside of brackets."""
    whole, depth = [], 0
    for piece in text.split(","):
        whole.append(piece)
        depth += piece.count("[") - piece.count("]")
        if depth <= 0:
            yield ",".join(whole)
            whole, depth = [], 0
    if whole:
        yield ",".join(whole)


def _unknown(ranks: Idset, hosts: list[str], known: Idset) -> list[str]:
    """Return the error about unknown ranks and hosts, if there are any."""
    named = [f"ranks {ranks}"] if ranks else []
    named += [f"hosts {Hostlist.of(hosts)}"] if hosts else []
    if not named:
        return []
    remedy = f"the ranks here are {known or 'none'}" if ranks else "give hosts of this instance, or ranks"
    return [f"unknown {' and '.join(named)}: {remedy}"]
