"""The module's options: `flux module load ... policy=easy queue-depth=8 placement=best-fit`, checked first.

Law: an error is reported at load, with the option, its value and what is allowed; an option that is not the module's is
the policy's. Under the names of Flux's schedulers we decide as they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fluxsched.adapters.flux.handle import LEVELS, LOG_INFO
from fluxsched.errors import InvalidValue
from fluxsched.sched.engine.policy_queue import DENY, UNSATISFIABLE
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.loading import PLUGIN_SIGN, parse_spec
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import find, join_queues, make, make_plugin, split_queues

DEFAULT_POLICY = "easy"

POLICY_OF_NAME: Mapping[str, str] = {"sched-simple": "fifo", "sched-fifo": "fifo", "sched-backfill": "easy"}
"""Policies of Flux's own schedulers, for a module that is loaded under their names."""

FORECASTING = ("sched-simple", "sched-fifo")
"""Flux's schedulers that annotate waiting jobs with an estimated start, though they plan none of them."""

QUEUE_DEPTH_MAX = 0x7FFFFFFF
"""The job manager's counter (RFC 27, limited mode)."""

NO_PARTIAL = "test-hello-nopartial"
"""An option of Flux's sched-simple, for its tests: say hello without `partial-ok`."""

OWN = ("policy", "queue-depth", "mode", "log-level", "forecast", "unsatisfiable", "trace", "plugins")


@dataclass(frozen=True, slots=True)
class Options:
    """A module's options; `policies` are those of queues that have their own, as in `policy=easy;debug=fifo`.

    `queue_depth` is None for unlimited, `trace` a file for the conversation.

    `plugins=SPEC|SPEC` are plugins under the policy.

    `forecast`: the first waiting jobs get an estimated start, though the policy plans none of them.
    `unsatisfiable`: what becomes of jobs that the shrunk resources cannot hold any more; Flux's schedulers deny them.
    """

    policy: Policy
    policies: Mapping[str, Policy] = field(default_factory=dict)
    queue_depth: int | None = None
    log_level: int = LOG_INFO
    partial_ok: bool = True
    forecast: bool = False
    unsatisfiable: str = DENY
    trace: str | None = None
    plugins: tuple[Plugin, ...] = ()
    decides: str = ""
    """Policy and plugins with their options, as given."""


def parse_options(words: Iterable[str], module_name: str) -> Options:
    """Return the options in the words after the module's path.

    Raises InvalidValue naming the word and the allowed ones.
    """
    words = list(words)
    partial_ok = NO_PARTIAL not in words
    given = _pairs(word for word in words if word != NO_PARTIAL)
    spec = given.pop("policy", POLICY_OF_NAME.get(module_name, DEFAULT_POLICY))
    depth, mode = given.pop("queue-depth", None), given.pop("mode", None)
    if depth is not None and mode is not None:
        raise InvalidValue(f"queue-depth={depth} and mode={mode} are the same setting: give one of them")
    level, trace = given.pop("log-level", "info").lower(), given.pop("trace", None)
    if level not in LEVELS:
        raise InvalidValue(f"log-level={level!r} is not one of {', '.join(LEVELS)}")
    plugins = given.pop("plugins", "")
    forecast = given.pop("forecast", "yes" if module_name in FORECASTING else "no")
    if forecast not in ("yes", "no"):
        raise InvalidValue(f"forecast={forecast!r} is neither yes nor no")
    unsatisfiable = given.pop("unsatisfiable", DENY)
    if unsatisfiable not in UNSATISFIABLE:
        raise InvalidValue(f"unsatisfiable={unsatisfiable!r} is not one of {', '.join(UNSATISFIABLE)}")
    general, own = split_queues(spec)
    return Options(
        policy=_policy(general, given),
        policies={queue: make(*parse_spec(each)) for queue, each in own.items()},
        queue_depth=_mode(mode) if mode is not None else _depth(depth),
        log_level=LEVELS[level],
        partial_ok=partial_ok,
        forecast=forecast == "yes",
        unsatisfiable=unsatisfiable,
        trace=trace,
        plugins=tuple([make_plugin(each) for each in plugins.split(PLUGIN_SIGN) if each]),
        decides=_decides(general, given, own, plugins),
    )


def _decides(spec: str, given: Mapping[str, str], own: Mapping[str, str], plugins: str) -> str:
    options = ",".join([f"{key}={value}" for key, value in given.items()])
    general = f"{spec}{':,'[':' in spec] if options else ''}{options}"
    policy = f"policy={join_queues(general, own)}"
    return f"{policy} plugins={plugins}" if plugins else policy


def _pairs(words: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InvalidValue(f"{word!r} is not option=value; there are {', '.join(OWN)} and those of the policy")
        if key in given:
            raise InvalidValue(f"option {key!r} is given twice")
        given[key] = value
    return given


def _policy(spec: str, given: Mapping[str, str]) -> Policy:
    name, options = parse_spec(spec)
    if twice := sorted(options.keys() & given.keys()):
        raise InvalidValue(f"option {twice[0]!r} is given twice, in policy={spec} and on its own")
    found = find(name)
    known = getattr(found, "OPTIONS", {})
    if not hasattr(found, "INNER") and (unknown := [key for key in given if key not in known]):
        raise InvalidValue(
            f"unknown option {unknown[0]!r}: the module has {', '.join(OWN)}, "
            f"and policy {name!r} has {', '.join(sorted(known)) or 'none'}"
        )
    return make(name, {**options, **given})


def _depth(text: str | None, option: str = "queue-depth") -> int | None:
    if text is None or text == "unlimited":
        return None
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= QUEUE_DEPTH_MAX:
        raise InvalidValue(f"{option}={text!r} is neither 'unlimited' nor a number from 1 to {QUEUE_DEPTH_MAX}")
    return int(text)


def _mode(text: str) -> int | None:
    """`unlimited` or `limited=N`, as Flux's schedulers took it before `queue-depth`."""
    word, equals, depth = text.partition("=")
    if word == "unlimited" and not equals:
        return None
    if word == "limited" and depth and depth != "unlimited":
        return _depth(depth, "mode=limited")
    raise InvalidValue(f"mode={text!r} is neither 'unlimited' nor 'limited=N'")
