"""Placement rules of a configuration, with the patterns of their filters.

Law: a pattern costs little whatever name it is applied to. It comes over the wire, and Python's matcher goes back: so
no group may repeat, and repetitions are few. What YuniKorn's own matcher cannot do (references, looking around) is
refused.
"""

from __future__ import annotations

import re
from typing import Final

from fluxsched.adapters.si.config.faults import Section
from fluxsched.adapters.si.config.queues import QUEUE_NAME
from fluxsched.adapters.si.config.settings import FIXED, RULES, TAG, NameFilter, PlacementRule, RuleFilter
from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidValue, LimitExceeded

PATTERN_CHARS_MAX = 256
"""Maximum number of characters of one pattern."""

PATTERN_REPEATS_MAX = 2
"""Repetitions in one pattern: the steps of a search grow with the name's length to one more than this power."""

RULE_DEPTH_MAX = 8
"""Parents of parents of a rule."""

_SPECIAL: Final = re.compile(r"[\\^$*+?()\[{}|]")
"""Characters that make a single entry a pattern."""

_PATTERN_PARTS: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[a-zA-Z]+[:)]|:|P?<[A-Za-z_]\w*>)?|[(){|*+?]|.", re.DOTALL
)

_SET_IN_SET: Final = re.compile(r"(?<!\\)\[|--|&&|~~|\|\|")
"""Means different things to different matchers."""


def read_rules(section: Section) -> tuple[PlacementRule, ...]:
    """The list `placementrules` of a partition."""
    return tuple([_rule(each, 0) for each in section.sections("placementrules")])


def check_pattern(text: str) -> re.Pattern[str]:
    """Raises InvalidValue for what is no pattern, or may cost much; LimitExceeded for a long one."""
    if len(text) > PATTERN_CHARS_MAX:
        raise LimitExceeded(f"a pattern of {len(text)} characters is above the limit of {PATTERN_CHARS_MAX}")
    repeats = 0
    before = ""
    for part in _PATTERN_PARTS.findall(text):
        if part == "(?" or (part[0] == "\\" and part[1:].isdigit()):
            raise InvalidValue(f"{shown(text)} uses lookaround or a back-reference, which are not supported")
        if part[0] == "[" and _SET_IN_SET.search(part[1:]):
            raise InvalidValue(f"{shown(text)} has a nested set, such as [[:alpha:]]: write [A-Za-z]")
        if part in ("*", "+", "?", "{"):
            if before == ")":
                raise InvalidValue(f"{shown(text)} repeats a group, which may take for ever: repeat single characters")
            repeats += before not in ("*", "+", "?", "{")
        before = part
    if repeats > PATTERN_REPEATS_MAX:
        raise LimitExceeded(f"{shown(text)} repeats {repeats} parts, the limit is {PATTERN_REPEATS_MAX}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as fault:
        raise InvalidValue(f"{shown(text)} is no regular expression: {fault}") from None


def _rule(section: Section, depth: int) -> PlacementRule:
    name = section.choice("name", RULES, "")
    value = section.text("value")
    if name in (FIXED, TAG) and not value:
        section.fault("value", f"rule {name} needs the {'queue' if name == FIXED else 'name of a tag'}")
    if name == FIXED and value and not all(map(QUEUE_NAME.fullmatch, value.split("."))):
        section.fault("value", f"{shown(value)} is no path of a queue such as root.a")
    is_creating = section.flag("create")
    found_filter = _filter(section.section("filter"))
    above = section.section("parent")
    parent = None
    if above.is_given and depth + 1 >= RULE_DEPTH_MAX:
        section.fault("parent", f"rules within rules: the limit is {RULE_DEPTH_MAX}")
    elif above.is_given:
        parent = _rule(above, depth + 1)
        if name == FIXED and value.startswith("root."):
            section.fault("parent", f"the queue {shown(value)} is named in full, and has no other parent")
    section.end()
    return PlacementRule(name, is_creating, value, found_filter, parent)


def _filter(section: Section) -> RuleFilter:
    kind = section.choice("type", ("allow", "deny"), "allow")
    found = RuleFilter(kind == "allow", _names(section, "users"), _names(section, "groups"))
    section.end()
    return found


def _names(section: Section, key: str) -> NameFilter:
    """A list of names, or one pattern."""
    names = section.texts(key)
    if len(names) == 1 and _SPECIAL.search(names[0]):
        try:
            return NameFilter(pattern=check_pattern(names[0]))
        except InvalidValue as fault:
            section.faults.add((*section.path, key, 0), str(fault))
    return NameFilter(frozenset(names))
