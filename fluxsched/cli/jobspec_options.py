"""Options that describe a job, named as Flux has them, its environment, and the jobspec (RFC 25) that they make.

Law: rules apply in the order in which they were typed, whichever option brought them. What cannot be sent (a variable
that is not UTF-8, or has no name) is left out, and stderr says which; what a rule says explicitly is never dropped.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time, timedelta
from fnmatch import translate
from math import inf, nan
from string import Template
from typing import Any

import click

from fluxsched.cli.base import TYPED_ORDER, warn
from fluxsched.cli.options import (
    FSD,
    LIMIT_FSD,
    URGENCY,
    Converted,
    Whole,
    complete_banks,
    complete_queues,
    parse_value,
    read_text,
)
from fluxsched.core.constraint import Constraint, parse_constraint_text
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import ENV_EXPAND, NOTIFY_EVENTS, REQUEUE_MAX
from fluxsched.core.jobid import has_tags
from fluxsched.core.jobspec import Jobspec, parse_nodes, parse_part
from fluxsched.core.quantities import MEMORY, check_kind, parse_amount, parse_duration
from fluxsched.core.text import is_text, not_among, printable, with_path
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.clock import SystemClock

RULE_FILES_MAX = 8
"""Depth to which a file of rules may name another one: a file that names itself must end."""

NAMES_SHOWN_MAX = 8
"""Variables that one warning names."""

_PREFIXES = {"env_rules": "", "env_remove": "-", "env_file": "^"}
_ENVIRONMENT_WARNED = "fluxsched.left-out"


def all_rules(ctx: click.Context, param: click.Parameter, rules: tuple[str, ...]) -> list[str]:
    """Read `--env`: its rules and those of --env-remove and --env-file, in the order they were typed."""
    order = ctx.meta.get(TYPED_ORDER, [])
    return [_PREFIXES[name] + text for name, text in order if name in _PREFIXES] if order else list(rules)


def submitted_environment(rules: Iterable[str]) -> dict[str, str]:
    """Return the environment to submit: `os.environ` edited by rules, without what cannot be sent. Warns once a
    command.
    """
    edited = edited_environment(os.environ, rules)
    left_out = [name for name, value in edited.items() if not name or not (is_text(name) and is_text(value))]
    if not left_out:
        return edited
    meta = click.get_current_context().meta
    if not meta.setdefault(_ENVIRONMENT_WARNED, False):
        meta[_ENVIRONMENT_WARNED] = True
        shown = ", ".join(printable(name) or "''" for name in left_out[:NAMES_SHOWN_MAX])
        more = f" and {len(left_out) - NAMES_SHOWN_MAX} more" if len(left_out) > NAMES_SHOWN_MAX else ""
        warn(f"omitted from the job's environment, because it is not UTF-8 text: {shown}{more}")
    return {name: value for name, value in edited.items() if name not in left_out}


def split_templates(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables as they are, and those that a rule has given tags to, such as `{{tmpdir}}`: the job's
    own.
    """
    tagged = {name for name, value in environment.items() if has_tags(value) and os.environ.get(name) != value}
    return (
        {name: value for name, value in environment.items() if name not in tagged},
        {name: value for name, value in environment.items() if name in tagged},
    )


def edited_environment(base: Mapping[str, str], rules: Iterable[str]) -> dict[str, str]:
    """Return `base` with rules applied in order: `-PATTERN`, `^FILE`, `NAME=VALUE` or `PATTERN` (flux-submit(1), ENV
    RULES).

    Raises InvalidValue naming the rule that is wrong, OSError for a file that cannot be read.
    """
    return _edited(dict(base), base, rules, 0)


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


# ---- options of a jobspec

JOB_SCHEMES = ("after", "afterstart", "afterany", "afterok", "afternotok")
"""RFC 26's dependencies on jobs."""
SINGLETON = "singleton"
AFTER_ARRAY = "aftercorr"
"""Slurm's dependency of each job of an array on that of the same place in another, read by `array.paired`."""

FLAGS = {"debug": 2, "waitable": 4, "novalidate": 8}
"""Names and bits of submit flags."""

UNSATISFIABLE = "unsatisfiable"
"""`attributes.system.unsatisfiable`: `wait` if the job is to wait although it could never run so far."""

PLACES = ("task", "node", "job")
"""Units that an amount may be asked for: each task, each node, or the whole job."""

Asked = tuple[str, str, int]
"""An amount that is asked for: one of PLACES, the kind, and how much."""

BEGIN_MAX_S = 253_402_300_800.0
"""The end of the year 9999, in seconds since the epoch: the last year that a date can have."""

SHELL_OPTIONS = ("pmi", "pty", "input.stdin", "output.stdout", "output.stderr", ENV_EXPAND)
"""The shell options (and what is below them) that are read here; others are kept in the jobspec."""

FILE_SUFFIXES = (".out", ".err", ".log", ".txt")
"""Suffixes that look like a file after -o: no shell option ends so."""

_SLURM_SIZE = re.compile(r"[0-9]+[KMGTPkmgtp]", re.ASCII)

_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?", re.ASCII)


_JOBSPEC_OPTIONS_WARNED = "fluxsched.ignored-options"

COPIES_MAX = 100_000
"""As many jobs as one connection may have in flight."""


def parse_flags(text: str) -> int:
    """Return the mask of a comma separated list of FLAGS. Raises InvalidValue naming all that are unknown."""
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in FLAGS]
    if unknown:
        raise InvalidValue(not_among(unknown, list(FLAGS)))
    return sum(FLAGS[name] for name in set(names))


def parse_dependency(text: str) -> list[Mapping[str, str]]:
    """Read `afterok:JOBID`, `begin-time:WHEN` or `singleton` as RFC 26 has it; several jobs as Slurm's `afterok:A:B` or
    `afterok:A,B`, several dependencies as its `afterok:A,afterany:B`; an array
    (`afterok:array=A`) or a range of ids (`afterok:A..B`) in place of a job, for the instance to say which these are.
    """
    on_jobs = (*JOB_SCHEMES, AFTER_ARRAY)
    found: list[Mapping[str, str]] = []
    scheme = ""
    for part in text.split(","):
        name, colon, value = part.partition(":")
        if name == SINGLETON:
            found.append({"scheme": name, "value": value})
            continue
        if colon:
            scheme = name
        elif scheme in on_jobs:
            value = part
        values = value.split(":") if scheme in on_jobs else [value]
        if not scheme or not all(values):
            raise InvalidValue(f"dependency {text!r} is neither SCHEME:VALUE, such as afterok:JOBID, nor singleton")
        if scheme == "begin-time":
            values = [str(parse_begin_time(value))]
        found += [{"scheme": scheme, "value": one} for one in values]
    return found


def parse_begin_time(text: str) -> float:
    """Seconds since the Unix epoch: from `now`, `+FSD`, seconds, or a date as in 2030-01-31T12:00."""
    if text == "now":
        return round(SystemClock.wall_s(), 3)
    try:
        after = text.startswith("+") and text != "+"
        seconds = round(SystemClock.wall_s() + parse_duration(text[1:]), 3) if after else float(text)
    except OverflowError:
        seconds = inf
    except InvalidValue:
        raise
    except ValueError:
        seconds = nan
    if seconds > BEGIN_MAX_S:
        raise InvalidValue(f"time {text!r} is after the year 9999")
    if seconds >= 0:
        return seconds
    try:
        at = _time_of_day(text)
        return (datetime.fromisoformat(text) if at is None else at).timestamp()
    except (ValueError, OverflowError, OSError):
        forms = "now, +FSD, seconds since the epoch, a time such as 23:59, tomorrow, or a date and time"
        raise InvalidValue(f"time {text!r} is not {forms}") from None


def _time_of_day(text: str) -> datetime | None:
    """Return when it is `23:59` next, or `tomorrow` (at midnight), or `tomorrow 08:00`; None for any other text."""
    now = datetime.fromtimestamp(SystemClock.wall_s())
    day, _, clock = text.partition(" ")
    if day == "tomorrow":
        return datetime.combine(now.date() + timedelta(days=1), time.fromisoformat(clock or "00:00"))
    if _CLOCK.fullmatch(text) is None:
        return None
    at = datetime.combine(now.date(), time.fromisoformat(text))
    return at if at > now else datetime.combine(now.date() + timedelta(days=1), at.time())


def parse_request(text: str) -> list[Asked]:
    """`memory=4GiB,scratch=1TB/node,matlab=1/job`: for each task, unless it says of what else."""
    found = []
    for part in text.split(","):
        kind, equals, rest = part.partition("=")
        amount, slash, place = rest.partition("/")
        if not equals or (slash and place not in PLACES):
            raise InvalidValue(f"{part!r} is not KIND=AMOUNT, KIND=AMOUNT/node or KIND=AMOUNT/job, as in memory=4GiB")
        found.append((place or PLACES[0], check_kind(kind), parse_amount(amount)))
    return found


def parse_memory(text: str) -> int:
    """Bytes from Slurm's `2G` or `512m`, in powers of 1024, or from `2GiB` or `2GB`.

    A bare number is refused: it would be MiB in Slurm and bytes in `--request`.
    """
    if text.isdecimal():
        raise InvalidValue(f"{text!r} has no unit: give one, as in {text}M, or --exclusive for a whole node's memory")
    return parse_amount(f"{text.upper()}iB" if _SLURM_SIZE.fullmatch(text) else text)


def amounts_for(place: str, requests: Iterable[Sequence[Asked]]) -> dict[str, int]:
    """Return the amounts requested for one of PLACES. Raises InvalidValue for a kind that is requested twice there."""
    asked: dict[str, int] = {}
    for where, kind, amount in [one for each in requests for one in each if one[0] == place]:
        if kind in asked:
            raise InvalidValue(f"{kind} for each {where} is given twice: give one amount")
        asked[kind] = amount
    return asked


def parse_preemptible_after(text: str) -> float:
    """Return the time in seconds. Raises InvalidValue for infinity, which is said by leaving the option out."""
    seconds = parse_duration(text)
    if seconds == inf:
        raise InvalidValue(f"{text!r} means never: leave the option out, then the job is not preempted")
    return seconds


def parse_copies(text: str) -> Idset:
    """Return the ids that `--cc` lists."""
    ids = Idset.parse(text)
    if not 0 < len(ids) <= COPIES_MAX:
        raise InvalidValue(f"{text!r} makes {len(ids)} jobs: at least 1, at most {COPIES_MAX} at a time")
    return ids


def parse_events(text: str) -> list[str]:
    """Return the events of which the user is to be notified. Raises InvalidValue."""
    events = text.split(",")
    if wrong := [event for event in events if event not in NOTIFY_EVENTS]:
        raise InvalidValue(not_among(wrong, NOTIFY_EVENTS))
    return events


def notify_from(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the notifications that the options ask for, as a jobspec has them; None for none."""
    command, events = options["notify_command"], {"on": options["notify_on"]} if options["notify_on"] else {}
    if options["notify"] and command is not None:
        raise click.UsageError("give --notify or --notify-command: a command may write to a terminal, too")
    if command is not None:
        return {"command": command, **events}
    if not options["notify"]:
        if events:
            raise click.UsageError("--notify-on says when to tell: give --notify or --notify-command, too")
        return None
    terminal = next((os.ttyname(fd) for fd in (2, 1, 0) if os.isatty(fd)), None)
    return events if terminal is None else {"terminal": terminal, "host": os.uname().nodename, **events}


_NATURAL = Whole(min=0)
_POSITIVE = Whole(min=1)
_NODES = Converted("nodes", parse_nodes)
_TASKS = (
    click.option("-N", "--nodes", type=_NODES, metavar="N|MIN-MAX", help="Number of nodes, or a range such as 4-10."),
    click.option("-n", "--ntasks", type=_POSITIVE, metavar="N", help="Number of tasks. [default: 1]"),
    click.option("-c", "--cores-per-task", type=_POSITIVE, metavar="N", default=1, help="Cores for each task."),
    click.option("-g", "--gpus-per-task", type=_NATURAL, metavar="N", default=0, help="GPUs for each task."),
    click.option("--part", "parts", multiple=True, metavar="LABEL:NODES[:CONSTRAINT]=COMMAND",
                 type=Converted("part", parse_part),
                 help="A part on whole nodes of its own, with its command; repeat it, and give no COMMAND."),
)  # fmt: skip
_SLOTS = (
    click.option("-N", "--nodes", type=_NODES, metavar="N|MIN-MAX",
                 help="Number of nodes, or a range; whole nodes unless -n is given."),
    click.option("-n", "--nslots", "ntasks", type=_POSITIVE, metavar="N", help="Number of slots of resources."),
    click.option("-c", "--cores-per-slot", "cores_per_task", type=_POSITIVE, metavar="N", default=1,
                 help="Cores for each slot. [default: 1]"),
    click.option("-g", "--gpus-per-slot", "gpus_per_task", type=_NATURAL, metavar="N", default=0,
                 help="GPUs for each slot."),
)  # fmt: skip
_JOB_OPTIONS = (
    click.option("--request", "requests", multiple=True, metavar="KIND=AMOUNT,...",
                 type=Converted("request", parse_request),
                 help="Countable resources: memory=4GiB for each task, scratch=1TB/node, matlab=1/job."),
    click.option("--mem", type=Converted("mem", parse_memory), metavar="SIZE",
                 help="Memory on each node, such as 2G or 512MiB; the job is limited to it. Without -N: on one node."),
    click.option("--elastic", is_flag=True, help="Let the job grow and shrink within its range of nodes."),
    click.option("--max-hops", type=Whole(min=2), metavar="N",
                 help="At most N hops between two nodes: 2 is under one switch, 4 under the next level."),
    click.option("-x", "--exclusive", is_flag=True, help="Whole nodes, not shared with other jobs."),
    click.option("-t", "--time-limit", type=LIMIT_FSD, metavar="MINUTES|FSD", default=0.0,
                 help="Time limit: minutes, or with a unit, such as 30s, 1.5h; or HH:MM:SS."),
    click.option("-q", "--queue", metavar="NAME", shell_complete=complete_queues, help="The queue to submit to."),
    click.option("--bank", metavar="NAME", shell_complete=complete_banks, help="The bank to charge the job to."),
    click.option("--preemptible-after", type=Converted("preemptible-after", parse_preemptible_after), metavar="FSD",
                 help="Let the job be preempted once it has run for this long; 0s: at any time. [default: never]"),
    click.option("--requeue", type=Whole(min=0, max=REQUEUE_MAX), metavar="N", default=0,
                 help="Submit the job again if it is preempted or loses a node, at most N times."),
    click.option("--retry-on", metavar="END,...",
                 help="With --requeue, also if its tasks end like this, such as exit:75,signal:9 or exit:1-9."),
    click.option("--retry-pause", type=FSD, metavar="FSD",
                 help="Pause before the first retry; each further one is twice as long. [default: 10s]"),
    click.option("--set", "job_set", metavar="NAME", help="The set that the job is part of."),
    click.option("--urgency", type=URGENCY, metavar="N", default=16, help="0-31, hold, default or expedite."),
    click.option("--job-name", metavar="NAME", help="The job's name. [default: the command's]"),
    click.option("--dependency", "dependencies", multiple=True, metavar="SCHEME:VALUE,...",
                 type=Converted("dependency", parse_dependency),
                 help="Such as afterok:JOBID or afterok:A:B; afterok:array=ARRAY: after all its jobs; singleton: "
                      "no other of this job name at a time; aftercorr:ARRAY: each copy after that of the same place "
                      "in ARRAY."),
    click.option("--begin-time", type=Converted("begin-time", parse_begin_time), metavar="WHEN",
                 help="Start no earlier than +FSD from now, 23:59, tomorrow, or a date and time."),
    click.option("--deadline", type=Converted("deadline", parse_begin_time), metavar="WHEN",
                 help="End the job unless it can be over by then; without a time limit, unless it has started."),
    click.option("--reservation", metavar="NAME", help="Run in this reservation only; see fluxsched reserve list."),
    click.option("--notify", is_flag=True,
                 help="Tell of its end by a line on this terminal, or by mail if that is gone."),
    click.option("--notify-command", metavar="COMMAND", help="Tell of its end by this command of a shell."),
    click.option("--notify-on", type=Converted("events", parse_events), metavar="EVENT,...",
                 help="Tell of these: start, end, fail. [default: end]"),
    click.option("--requires", type=Converted("constraint", parse_constraint_text), metavar="CONSTRAINT",
                 help="Such as 'ssd & !gpu' or 'host:node[0-3]'."),
    click.option("--input", metavar="FILE", help="Have the tasks read FILE."),
    click.option("--output", metavar="FILE",
                 help="Write stdout of the tasks to FILE. It may have tags, such as {{id}}, {{name}}, {{taskid}}."),
    click.option("--error", metavar="FILE", help="Write stderr of the tasks to FILE, which may have tags as well."),
    click.option("--cwd", metavar="DIR", help="Working directory of the tasks. [default: this one]"),
    click.option("--env", "env_rules", multiple=True, metavar="RULE", callback=all_rules,
                 help="Edit the environment, in order: NAME=VALUE sets, -PATTERN removes, PATTERN restores, ^FILE "
                      "holds more rules."),
    click.option("--env-remove", multiple=True, metavar="PATTERN", expose_value=False,
                 help="Remove variables that match: a glob, or /REGEX/."),
    click.option("--env-file", multiple=True, metavar="FILE", expose_value=False,
                 help="Read --env rules from FILE, one per line."),
    click.option("-o", "--setopt", "shell_options", multiple=True, metavar="KEY[=VALUE]",
                 help="Set a shell option: pmi=off disables PMI, pmi=simple enables it even for one task."),
    click.option("--setattr", "attributes", multiple=True, metavar="KEY=VALUE",
                 help="Set attributes.system.KEY (or user.KEY) of the jobspec; VALUE is JSON or text."),
    click.option("--allow-infeasible", is_flag=True, help="Submit a job that cannot run yet; it waits until it can."),
    click.option("--flags", type=Converted("flags", parse_flags), metavar="NAME,...", default=0,
                 help=f"Submit flags: {', '.join(FLAGS)}."),
    click.option("--dry-run", is_flag=True, help="Print the jobspec and submit nothing."),
)  # fmt: skip
_COMMAND = click.argument("command", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)


def job_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a job, and its command."""
    return _with((*_TASKS, *_JOB_OPTIONS, _COMMAND), handler)


def slot_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a job that is an instance: what it has is asked for in slots, not in tasks."""
    return _with((*_SLOTS, *_JOB_OPTIONS), handler)


def _with(options: Sequence[Callable[..., Any]], handler: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        handler = option(handler)
    return handler


def build(options: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the jobspec that the options ask for, with these variables on top of its environment.

    Raises InvalidValue for what does not make a job.
    """
    _check_parts(options)
    dependencies = [one for given in options["dependencies"] for one in given]
    if any(one["scheme"] == AFTER_ARRAY for one in dependencies):
        raise InvalidValue(f"{AFTER_ARRAY} is for the jobs of `submit` and `bulksubmit`: use afterok:JOBID")
    environment, templates = split_templates(submitted_environment(options["env_rules"]))
    begin = options["begin_time"]
    constraint: Constraint | None = options["requires"]
    requests, nodes, ntasks = options["requests"], options["nodes"], options["ntasks"]
    if options["mem"] is not None:
        requests = (*requests, [("node", MEMORY, options["mem"])])
        if nodes is None:  # memory is each node's, so their number is to be known; one task as without --mem
            nodes, ntasks = 1, ntasks or 1
    per_task, per_node, shared = [amounts_for(place, requests) for place in PLACES]
    after = [] if begin is None else [{"scheme": "begin-time", "value": str(begin)}]
    jobspec = Jobspec.from_command(
        list(options["command"]),
        ntasks=ntasks,
        cores_per_task=options["cores_per_task"],
        gpus_per_task=options["gpus_per_task"],
        amounts_per_task=per_task,
        amounts_per_node=per_node,
        shared=shared,
        nodes=nodes,
        exclusive=options["exclusive"],
        duration_s=options["time_limit"],
        queue=options["queue"],
        cwd=working_directory(options["cwd"]),
        environment={**environment, **(variables or {})},
        constraint=constraint,
        dependencies=(*dependencies, *after),
        input=options["input"],
        output=options["output"],
        error=options["error"],
        name=options["job_name"],
        bank=options["bank"],
        preemptible_after_s=options["preemptible_after"],
        requeue=options["requeue"],
        retry_on=options["retry_on"],
        retry_pause_s=options["retry_pause"],
        job_set=options["job_set"],
        elastic=options["elastic"],
        max_hops=options["max_hops"],
        reservation=options["reservation"],
        deadline_s=options["deadline"],
        parts=options.get("parts", ()),
    ).to_json()
    if options["allow_infeasible"]:
        jobspec["attributes"]["system"][UNSATISFIABLE] = "wait"
    if (notify := notify_from(options)) is not None:
        jobspec["attributes"]["system"].setdefault("fluxsched", {})["notify"] = notify
    _check_directories(jobspec)
    _warn_of_ignored(options["shell_options"])
    return _with_attributes(jobspec, options, templates)


def _with_attributes(
    jobspec: dict[str, Any], options: Mapping[str, Any], templates: Mapping[str, str]
) -> dict[str, Any]:
    """Return the jobspec with the attributes that were set by their names, and with templates of variables."""
    attributes = [*(f"system.shell.options.{each}" for each in options["shell_options"]), *options["attributes"]]
    if templates:
        jobspec = with_path(jobspec, f"attributes.system.shell.options.{ENV_EXPAND}", templates)
    if not attributes and not templates:
        return jobspec
    for attribute in attributes:
        jobspec = with_attribute(jobspec, attribute)
    return Jobspec.parse(jobspec).to_json()


def _check_directories(jobspec: Mapping[str, Any]) -> None:
    """Raise InvalidValue where a file for output would be in a directory that is missing here.

    What another job or a tag may make is not looked at, nor what is not below a directory of this machine.
    """
    system = jobspec["attributes"]["system"]
    cwd, files = system["cwd"], system.get("shell", {}).get("options", {}).get("output", {})
    if system.get("dependencies") or not os.path.isdir(cwd):
        return
    for stream, file in files.items():
        directory = os.path.dirname(os.path.join(cwd, file.get("path", "")))
        if "{" not in directory and not os.path.isdir(directory):
            option = "--output" if stream == "stdout" else "--error"
            raise InvalidValue(f"{option}: there is no directory {printable(directory)}: make it first")


def _check_parts(options: Mapping[str, Any]) -> None:
    """Raise click.UsageError for a command, or a number of nodes or tasks, of a job whose parts have their own."""
    if not options.get("parts"):
        if not options["command"]:
            raise click.MissingParameter(param_hint="'COMMAND...'", param_type="argument")
        return
    own = {"COMMAND": options["command"], "--nodes": options["nodes"], "--ntasks": options["ntasks"]}
    if both := [name for name, value in own.items() if value]:
        raise click.UsageError(f"give {' and '.join(both)} or --part: each part has its own")


def _is_file(name: str) -> bool:
    """Return whether what should be a shell option looks like the name of a file, as after Slurm's -o."""
    return "/" in name or "%" in name or name.lower().endswith(FILE_SUFFIXES)


def _warn_of_ignored(settings: Iterable[str]) -> None:
    """Warn once per command about unsupported shell options: as in Flux they are not an error."""
    names = dict.fromkeys(setting.lstrip("^").partition("=")[0] for setting in settings)
    if files := [name for name in names if _is_file(name)]:
        remedy = "to name a file write --output FILE, with {{id}} in it for the job's id"
        raise InvalidValue(f"-o {files[0]!r} would set a shell option, as in Flux: {remedy}")
    ignored = [name for name in names if not f"{name}.".startswith(tuple(f"{read}." for read in SHELL_OPTIONS))]
    meta = click.get_current_context().find_root().meta
    if ignored and not meta.setdefault(_JOBSPEC_OPTIONS_WARNED, False):
        meta[_JOBSPEC_OPTIONS_WARNED] = True
        shown = ", ".join(map(printable, ignored[:NAMES_SHOWN_MAX]))
        warn(f"ignoring unsupported shell options: {shown}; supported are {', '.join(SHELL_OPTIONS)}")


def working_directory(given: str | None) -> str:
    """Return the directory where the tasks run: `--cwd` or the current one.

    Raises InvalidValue where that is no directory that can be named.
    """
    try:
        here = "" if given and os.path.isabs(given) else os.getcwd()
    except FileNotFoundError:
        gone = "the current directory has been removed: change it, or give --cwd an absolute DIR"
        raise InvalidValue(gone) from None
    path = os.path.abspath(os.path.join(here, given or ""))
    if not is_text(path):
        raise InvalidValue(f"'{printable(path)}', where the job would run, is not UTF-8 text: give another --cwd DIR")
    return path


def with_attribute(jobspec: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Return a copy of `jobspec` with one attribute set, as `flux submit --setattr` does; `^KEY=FILE` reads JSON from a
    file.

    Without `=VALUE` it is set to 1. A key that starts with neither `system.`, `user.` nor a dot belongs to `system.`.
    """
    key, equals, text = setting.partition("=")
    if key.startswith("^"):
        key, value = key[1:], parse_value(read_text(text, "--setattr"))
    else:
        value = parse_value(text) if equals else 1
    key = key[1:] if key.startswith(".") else key if key.startswith(("user.", "system.")) else f"system.{key}"
    if not all(key.split(".")):
        raise InvalidValue(f"--setattr {setting!r}: {key!r} is not a dotted key")
    return with_path(jobspec, f"attributes.{key}", value)
