"""The environment that a job is submitted with: that of this command, edited by rules as in Flux.

Law: rules apply in the order in which they were typed, whichever option brought them. What cannot be sent (a variable
that is not UTF-8, or has no name) is left out, and stderr says which; what a rule says explicitly is never dropped.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from string import Template

import click

from fluxsched.cli.common.base import TYPED_ORDER, warn
from fluxsched.cli.common.values import read_text
from fluxsched.core.template import has_tags
from fluxsched.core.text import is_text, printable
from fluxsched.errors import InvalidValue, LimitExceeded

RULE_FILES_MAX = 8
"""How deep a file of rules may name another one: a file that names itself must end."""

NAMES_SHOWN_MAX = 8
"""Variables that one warning names."""

_PREFIXES = {"env_rules": "", "env_remove": "-", "env_file": "^"}
_WARNED = "fluxsched.left-out"


def all_rules(ctx: click.Context, param: click.Parameter, rules: tuple[str, ...]) -> list[str]:
    """Callback of `--env`: its rules and those of --env-remove and --env-file, in the order they were typed."""
    order = ctx.meta.get(TYPED_ORDER, [])
    return [_PREFIXES[name] + text for name, text in order if name in _PREFIXES] if order else list(rules)


def submitted_environment(rules: Iterable[str]) -> dict[str, str]:
    """The environment to submit: `os.environ` edited by rules, without what cannot be sent. Warns once a command."""
    edited = edited_environment(os.environ, rules)
    left_out = [name for name, value in edited.items() if not name or not (is_text(name) and is_text(value))]
    if not left_out:
        return edited
    meta = click.get_current_context().meta
    if not meta.setdefault(_WARNED, False):
        meta[_WARNED] = True
        shown = ", ".join(printable(name) or "''" for name in left_out[:NAMES_SHOWN_MAX])
        more = f" and {len(left_out) - NAMES_SHOWN_MAX} more" if len(left_out) > NAMES_SHOWN_MAX else ""
        warn(f"omitted from the job's environment, because it is not UTF-8 text: {shown}{more}")
    return {name: value for name, value in edited.items() if name not in left_out}


def split_templates(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables as they are, and those that a rule has given tags to, such as `{{tmpdir}}`: the job's own."""
    tagged = {
        name for name, value in environment.items() if has_tags(value) and os.environ.get(name) != value
    }
    return (
        {name: value for name, value in environment.items() if name not in tagged},
        {name: value for name, value in environment.items() if name in tagged},
    )


def edited_environment(base: Mapping[str, str], rules: Iterable[str], depth: int = 0) -> dict[str, str]:
    """`base` with rules applied in order: `-PATTERN`, `^FILE`, `NAME=VALUE` or `PATTERN` (flux-submit(1), ENV RULES).

    Raises InvalidValue naming the rule that is wrong, OSError for a file that cannot be read.
    """
    return _edited(dict(base), base, rules, depth)


def _edited(made: dict[str, str], base: Mapping[str, str], rules: Iterable[str], depth: int) -> dict[str, str]:
    for rule in rules:
        name, equals, value = rule.partition("=")
        if rule.startswith("-"):
            is_removed = _matcher(rule[1:], rule)
            made = {key: kept for key, kept in made.items() if not is_removed(key)}
        elif rule.startswith("^"):
            made = _edited(made, base, _rules_of(rule[1:], depth), depth + 1)
        elif equals:
            if not name:
                raise InvalidValue(f"--env {rule!r} names no variable: give NAME=VALUE")
            made[name] = _substituted(value, ChainMap(made, dict(base)), rule)
        else:
            is_wanted = _matcher(rule, rule)
            made = {**{key: kept for key, kept in base.items() if is_wanted(key)}, **made}
    return made


def _matcher(pattern: str, rule: str) -> Callable[[str], object]:
    """`/REGEX/`, matched from the start of the name, or a shell's pattern for the whole name."""
    regex = pattern[1:].removesuffix("/") if pattern.startswith("/") else translate(pattern)
    try:
        return re.compile(regex).match
    except (re.error, RecursionError, OverflowError) as fault:
        raise InvalidValue(f"--env {rule!r}: {pattern!r} is not a regular expression: {fault}") from None


def _rules_of(name: str, depth: int) -> list[str]:
    if depth >= RULE_FILES_MAX:
        raise LimitExceeded(f"--env: {name!r}: rule files are nested more than {RULE_FILES_MAX} deep")
    lines = [line.strip() for line in read_text(name, "--env").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _substituted(value: str, known: Mapping[str, str], rule: str) -> str:
    """`$NAME` and `${NAME}` replaced, `$$` a dollar sign."""
    try:
        return Template(value).substitute(known) if "$" in value else value
    except KeyError as missing:
        raise InvalidValue(f"--env {rule!r}: the variable {missing.args[0]} is not set") from None
    except ValueError:
        raise InvalidValue(f"--env {rule!r}: $ must be followed by NAME, {{NAME}} or $") from None
