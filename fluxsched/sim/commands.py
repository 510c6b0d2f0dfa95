"""The simulator's functions for the command line: one per command, values in, values out; for `policy new` and `plugin
new` a package from a template, complete or not at all.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import zip_longest
from math import inf
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

from fluxsched.config.policies import check_files, check_policies, with_plugins
from fluxsched.core.constraint import parse_targets
from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import Entry, ResourceSet
from fluxsched.core.text import plural
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.jobs.queues import QueueConfig
from fluxsched.resource.inventory import EXCLUDE, SPARES
from fluxsched.sched.registry import join_queues, known_plugins, known_policies, load, split_queues
from fluxsched.sim.record import RecordPeriod, machine_in, recorded
from fluxsched.sim.replay import LiveInstance, ReplayClock, replay
from fluxsched.sim.report import BANK, as_json, drawing, report
from fluxsched.sim.result import Result, percentile, write_courses, write_csv
from fluxsched.sim.simulation import DEFAULT_POLICY, Progress, run
from fluxsched.sim.site import DEFAULT, Site, SiteEvent, changed_site, is_foreign, policy_faults, recorded_site
from fluxsched.sim.synthetic import USERS, generate
from fluxsched.sim.traces import Trace, is_swf, machine_of, print_lines, print_swf, read_trace, with_banks, write_trace

LABEL_CHARS_MAX = 40
"""A label is the head of a column."""

Bar = Callable[[str], Progress]
"""Makes the progress of one simulation, titled."""


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """One command line.

    `by` is `user`, `queue` or `bank` for a table of these; `labels` are one a policy, in order. `bank` (one of BANKS)
    is what of a job stands for a bank that the trace does not name.

    Raises InvalidValue for options without a meaning: policies that do not exist or are given twice, labels that are
    not unique, and two machines. `html` is written by the command, of `Study.drawing`.
    """

    trace: Path
    policies: tuple[str, ...] = ()
    procs: int | None = None
    nodes: int | None = None
    cores: int | None = None
    gpus: int | None = None
    r_path: Path | None = None
    config: Path | None = None
    site: Path | None = None
    until_s: float | None = None
    jobs_out: Path | None = None
    plot: Path | None = None
    plot_parts: tuple[str, ...] = ()
    html: Path | None = None
    check: bool = False
    feedback: bool = False
    by: str | None = None
    labels: tuple[str, ...] = ()
    bank: str | None = None
    preempt_grace_s: float | None = None
    own_time: bool = False
    accounts_out: Path | None = None
    plugins: tuple[str, ...] = ()
    topology: str | None = None

    def __post_init__(self) -> None:
        if self.plugins:
            under = [with_plugins(specs, self.plugins) for specs in self.policies or (DEFAULT_POLICY,)]
            object.__setattr__(self, "policies", tuple(under))
        _check_labels(self.labels, max(1, len(self.policies)))
        for at, specs in enumerate(self.policies):
            if specs in self.policies[:at]:
                raise InvalidValue(f"policy {specs!r} is given twice: policies must be different")
            check_policies(specs)
            check_files(specs)
        machine_of(self.procs, self.nodes, self.cores, self.gpus, self.r_path)


@dataclass(frozen=True, slots=True)
class Study:
    """Outcome of a simulation of one or more policies on a trace."""

    trace: Trace
    results: list[Result]
    by: str | None = None
    left_out: list[str] = field(default_factory=list)
    """Parts of the results that a plot does not show."""

    def lines(self, columns: int | None = None) -> Iterator[str]:
        """Yield the lines of the report for people; `columns` is the width of a terminal."""
        return report(self.trace, self.results, self.by, columns)

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON for programs."""
        return as_json(self.trace, self.results)

    def drawing(self) -> dict[str, Any]:
        """Return the drawing of the results for a page."""
        return drawing(self.trace, self.results)


def simulate(options: StudyOptions, stopwatch: Callable[[], float], bar: Bar | None = None) -> Study:
    """Return every policy on the trace. Raises InvalidValue also for what `write_files` could not write."""
    _check_written(options)
    trace = _read(options)
    results = [
        _simulated(trace, policy, label, options, stopwatch, bar)
        for policy, label in zip_longest(options.policies or (DEFAULT_POLICY,), options.labels)
    ]
    return Study(trace, results, options.by)


def _read(options: StudyOptions) -> Trace:
    trace = read_trace(options.trace)
    return trace if options.bank is None else with_banks(trace, options.bank)


def _simulated(
    trace: Trace, policy: str, label: str | None, options: StudyOptions, stopwatch: Callable[[], float], bar: Bar | None
) -> Result:
    return _guarded(
        trace,
        policy,
        procs=options.procs,
        nodes=options.nodes,
        cores=options.cores,
        gpus=options.gpus,
        resources=options.r_path,
        config=options.config,
        site=() if options.site is None else options.site,
        until_s=inf if options.until_s is None else options.until_s,
        placements=options.plot is not None or options.html is not None,
        check=options.check,
        feedback=options.feedback,
        stopwatch=stopwatch,
        progress=None if bar is None else bar(label or policy),
        label=label,
        preempt_grace_s=options.preempt_grace_s or 0.0,
        own_time=options.own_time,
        accounts=options.by == BANK or options.accounts_out is not None,
        topology=options.topology,
    )


def _guarded(trace: Trace, policy: str, **options: Any) -> Result:
    """Return what `run` does; a fault of code that is not ours is an InvalidValue."""
    with _faults_of(policy):
        return run(trace, policy, **options)


def _faults_of(policy: str) -> AbstractContextManager[None]:
    return policy_faults(policy) if is_foreign(policy) else nullcontext()


def replay_live(
    options: StudyOptions, instance: LiveInstance, speed: float, clock: ReplayClock, bar: Bar | None = None
) -> Study:
    """Return the trace against a running instance. Raises like `replay`, and InvalidValue for what only simulations can
    do.
    """
    _check_written(options)
    given = {
        "policy": options.policies, "procs": options.procs, "nodes": options.nodes, "cores": options.cores,
        "gpus": options.gpus, "R": options.r_path, "config": options.config, "site": options.site,
        "until": options.until_s, "check": options.check, "feedback": options.feedback,
        "preempt-grace": options.preempt_grace_s, "own-time": options.own_time, "accounts-out": options.accounts_out,
        "by bank": options.by == BANK, "topology": options.topology,
    }  # fmt: skip
    if words := [name for name, value in given.items() if value]:
        raise InvalidValue(f"{', '.join(words)}: not with --speed: the running instance determines it")
    trace = _read(options)
    result = replay(instance, trace, speed, clock, None if bar is None else bar("live"))
    result.label = options.labels[0] if options.labels else None
    return Study(trace, [result], options.by)


def make_workload(
    path: Path | None,
    *,
    jobs: int,
    seed: int,
    load: float | None = None,
    users: int = USERS,
    procs: int | None = None,
    nodes: int | None = None,
    cores: int | None = None,
    banks: int | None = None,
    elastic: float = 0.0,
    parts: float = 0.0,
    max_hops: int | None = None,
    swf: bool = False,
) -> Iterator[str]:
    """Write a made-up trace into a file, or, without one, yield its lines (JSON lines, or SWF)."""
    if swf and (elastic or parts):
        raise InvalidValue("SWF cannot say that a job is elastic, or has parts: leave out --swf")
    trace = generate(
        jobs, procs, seed, load=load, users=users, nodes=nodes, cores=cores, banks=banks,
        elastic=elastic, parts=parts, max_hops=max_hops,
    )  # fmt: skip
    if path is None:
        return print_swf(trace) if swf else print_lines(trace)
    write_trace(trace, path)
    return iter(())


def export_trace(
    path: Path | None,
    jobs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
    resources: ResourceSet | None,
    *,
    anonymous: bool = False,
    swf: bool = False,
) -> tuple[Trace, Iterator[str]]:
    """Write the record of an instance as a trace into a file, or, without one, return its lines; return the trace."""
    swf = swf or (path is not None and is_swf(path))
    machine = None if resources is None else machine_in(resources)
    trace = recorded("record", jobs, machine, anonymous=anonymous, swf=swf)
    if not trace.jobs:
        raise InvalidValue(f"no job of the {trace.left_out} listed has run and ended: nothing to write; see --since")
    if path is None:
        return trace, print_swf(trace) if swf else print_lines(trace)
    write_trace(trace, path)
    return trace, iter(())


# ---- what if

ADDED_TARGETS_MAX: Final = HOSTS_MAX
"""Targets that a study may add: as many as a list of hosts can name."""

NEAR_S: Final = 60.0
"""Starts that differ by no more are near (seconds)."""

NOTE_CHARS_MAX: Final = 200
"""Characters of a note about a change: a list of hosts may be longer."""

AS_IT_WAS: Final = "as it was"


@dataclass(frozen=True, slots=True)
class History:
    """The record of an instance, as far as a study needs it: jobs as `recorded` takes them, and the site.

    `policies` are those of its schedulers, each with the groups that it served; `unusable` says from when until when no
    job could be started on which targets.
    """

    jobs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    period: RecordPeriod
    resources: ResourceSet
    config: Mapping[str, Any]
    policies: Sequence[tuple[str, Sequence[str]]]
    unusable: Sequence[tuple[float, float, Idset]]


@dataclass(frozen=True, slots=True)
class Change:
    """Changes to try: policies, of which each is one simulation, and what all of them have in common.

    Raises InvalidValue for policies that do not exist or are given twice, and for labels that do not fit them.
    """

    policies: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    config: Path | None = None
    nodes: int = 0
    without: str | None = None
    html: Path | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        if self.labels and not (self.policies or self.is_of_site):
            raise InvalidValue(
                f"label {self.labels[0]!r} names no change: give --policy, --config, --nodes or --without"
            )
        if AS_IT_WAS in self.labels:
            raise InvalidValue(f"label {AS_IT_WAS!r} is that of the record itself: give another one")
        StudyOptions(Path(), self.policies, labels=self.labels)
        if self.nodes > ADDED_TARGETS_MAX:
            raise LimitExceeded(f"--nodes +{self.nodes}: at most {ADDED_TARGETS_MAX} can be added")

    @property
    def is_of_site(self) -> bool:
        """Return whether the site is another one."""
        return bool(self.config or self.nodes or self.without)


class Nearness(NamedTuple):
    """How near a simulation comes to what it repeats: median waits in seconds, and how many jobs start about when they
    did, of all those that started within the record.
    """

    jobs: int
    recorded_p50_s: float
    simulated_p50_s: float
    near: int

    @classmethod
    def of(cls, trace: Trace, result: Result) -> Nearness:
        """Compare a result with what its trace has of the same jobs."""
        both = [(job.wait_s, wait_s) for job, wait_s in zip(trace.jobs, result.wait, strict=True)]
        recorded_s = sorted([was_s for was_s, _ in both if was_s is not None])
        simulated_s = sorted([wait_s for was_s, wait_s in both if was_s is not None and wait_s is not None])
        near = sum([
            was_s is not None and wait_s is not None and abs(was_s - wait_s) <= NEAR_S for was_s, wait_s in both
        ])  # fmt: skip
        was_p50_s, p50_s = [percentile(waits, 0.5) if waits else 0.0 for waits in (recorded_s, simulated_s)]
        return cls(len(recorded_s), was_p50_s, p50_s, near)

    def __str__(self) -> str:
        if not self.jobs:
            return f"{AS_IT_WAS}: no job has started in it"
        start, its = ("starts", "its") if self.jobs == 1 else ("start", "their")
        return (
            f"{AS_IT_WAS}: median wait {self.recorded_p50_s:,.1f} s recorded, {self.simulated_p50_s:,.1f} s simulated; "
            f"{100 * self.near / self.jobs:.1f} % of {plural(self.jobs, 'job')} {start} within {NEAR_S:.0f} s of {its} "
            "recorded start"
        )


@dataclass(frozen=True, slots=True)
class RecordStudy(Study):
    """A study of a record, whose first result repeats it."""

    notes: list[str] = field(default_factory=list)

    @property
    def nearness(self) -> Nearness:
        """Return how near the first result comes to the record."""
        return Nearness.of(self.trace, self.results[0])

    def lines(self, columns: int | None = None) -> Iterator[str]:
        """Yield the lines of the report for people."""
        yield str(self.nearness)
        yield from self.notes
        yield from report(self.trace, self.results, self.by, columns)

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON for programs."""
        return {"as_it_was": self.nearness._asdict(), "notes": self.notes, **as_json(self.trace, self.results)}

    def drawing(self) -> dict[str, Any]:
        """Return the drawing of the results for a page."""
        found = drawing(self.trace, self.results)
        return {**found, "heading": [*found["heading"], str(self.nearness), *self.notes]}


def what_if(history: History, change: Change, stopwatch: Callable[[], float], bar: Bar | None = None) -> RecordStudy:
    """Simulate a record as it was, and then under each change. Raises InvalidValue before anything is simulated."""
    if change.html is not None and not change.html.parent.is_dir():
        raise InvalidValue(f"{change.html} cannot be written: there is no directory {change.html.parent}")
    machine = machine_in(history.resources)
    trace = recorded("record", history.jobs, machine, period=history.period)
    if not trace.jobs:
        raise InvalidValue(
            f"no job of the {trace.left_out} recorded since then has run: nothing to simulate; give an earlier --since"
        )
    begin_s = history.period.since_s
    if begin_s is None:
        begin_s = min([job["t_submit"] for job, _ in history.jobs])
    site = recorded_site(history.config, history.resources)
    policy = _policy_of(history.policies, site.queues)
    other, out, notes = _changed(site, change)
    plans = [(policy, AS_IT_WAS, site, EMPTY)]
    titles = change.labels or change.policies or (("changed",) if change.is_of_site else ())
    again, lacking = _without_queues(policy, other.queues)
    if lacking and not change.policies:
        notes.append(f"changed: no queue {', '.join(lacking)}"[:NOTE_CHARS_MAX])
    plans += [(spec, title, other, out) for spec, title in zip(change.policies or (again,), titles, strict=False)]
    for spec, _, where, _ in plans:
        with _faults_of(spec):
            load(where.under(spec, trace)[1])
    results = [
        _guarded(
            trace, spec, resources=where, site=outages(history.unusable, begin_s, where, gone), label=title,
            stopwatch=stopwatch, progress=None if bar is None else bar(title), placements=change.html is not None,
            accounts=change.by == BANK,
        )
        for spec, title, where, gone in plans
    ]  # fmt: skip
    if assumed := sum([job.result is None for job in trace.jobs]):
        notes.append(f"{plural(assumed, 'job')} that had not ended: taken to use up their limits")
    return RecordStudy(trace, results, change.by, notes=notes)


def _policy_of(policies: Sequence[tuple[str, Sequence[str]]], queues: Mapping[str | None, QueueConfig]) -> str:
    """Return the one scheduler's policies that decide as those of several schedulers."""
    if not policies:
        return DEFAULT_POLICY
    (general, _), *others = sorted(policies, key=lambda one: bool(one[1]) and DEFAULT not in one[1])
    own = [
        f"{queue.name}={spec}" for spec, groups in others for queue in queues.values()
        if queue.name is not None and queue.group in groups and queue.policy is None
    ]  # fmt: skip
    return ";".join([general, *own])


def _without_queues(specs: str, queues: Mapping[str | None, QueueConfig]) -> tuple[str, list[str]]:
    """Return policies for these queues, and the other queues that have one."""
    general, own = split_queues(specs)
    lacking = [queue for queue in own if queue not in queues]
    return join_queues(general, {queue: spec for queue, spec in own.items() if queue in queues}), lacking


def _changed(site: Site, change: Change) -> tuple[Site, Idset, list[str]]:
    """Return the changed site, the targets that are taken from it, and what changes in words."""
    notes: list[str] = []
    resources = site.resources
    if change.nodes:
        resources = _extended(resources, change.nodes)
        notes.append(
            f"changed: {plural(change.nodes, 'target')} more, like {resources.host(max(site.resources.ranks))}"
        )
    if change.config is not None:
        found = changed_site(change.config, resources)
        if change.nodes and found.resources.ranks != resources.ranks:
            raise InvalidValue(f"--nodes adds to the recorded machine, and {change.config} defines another: change it")
        site = found
    elif change.nodes:
        site = replace(site, resources=resources)
    out = EMPTY if change.without is None else parse_targets(change.without, site.resources)
    if out and out == site.resources.ranks:
        raise InvalidValue(f"--without {change.without}: there would be no target left of {len(out)}: leave some")
    if out:
        notes.append(
            f"changed: without {plural(len(out), 'target')} ({site.resources.hosts(out) or out})"[:NOTE_CHARS_MAX]
        )
    return site, out, notes


def _extended(resources: ResourceSet, count: int) -> ResourceSet:
    """Return the resources and so many targets more, like the last one."""
    last = max(resources.ranks)
    like = resources.restrict(Idset.of([last]))
    ranks = Idset.span(last + 1, last + count)
    hosts = Hostlist.parse(f"added[0-{count - 1}]") if resources.nodelist else Hostlist()
    properties = dict.fromkeys(like.properties, ranks)
    added = ResourceSet((Entry(ranks, like.entries[0].children),), hosts, properties)
    return replace(resources | added, scheduling=resources.scheduling, topology=resources.topology)


def outages(
    unusable: Sequence[tuple[float, float, Idset]], begin_s: float, site: Site, without: Idset = EMPTY
) -> list[SiteEvent]:
    """Return the times at which targets could not be used, as drains from `begin_s` on, and no use of those `without`
    at all.
    """
    out = without | site.groups.get(EXCLUDE, EMPTY) | site.groups.get(SPARES, EMPTY)
    usable = site.resources.ranks - out
    steps = [SiteEvent(0.0, "assign", without, EXCLUDE)] if without else []
    changes: dict[float, list[tuple[Idset, bool]]] = {}
    for from_s, until_s, targets in unusable:
        if until_s > begin_s and (there := targets & usable):
            changes.setdefault(max(0.0, from_s - begin_s), []).append((there, True))
            if until_s < inf:
                changes.setdefault(until_s - begin_s, []).append((there, False))
    levels = [EMPTY]
    for when_s, some in sorted(changes.items()):
        before = levels[0]
        for targets, begins in some:
            _count(levels, targets, begins)
        for do, ranks in (("drain", levels[0] - before), ("undrain", before - levels[0])):
            if ranks:
                steps.append(SiteEvent(when_s, do, ranks, "recorded"))
    return steps


def _count(levels: list[Idset], targets: Idset, begins: bool) -> None:
    """Count one reason more, or less, of targets; `levels[n]` are those with more than `n` reasons."""
    for at in range(len(levels)) if begins else reversed(range(len(levels))):
        level = levels[at]
        levels[at], targets = (level | targets, level & targets) if begins else (level - targets, targets - level)
    if begins and targets:
        levels.append(targets)


def _check_labels(labels: tuple[str, ...], policies: int) -> None:
    if labels and len(labels) != policies:
        counts = f"{len(labels)} {'label' if len(labels) == 1 else 'labels'} for {policies}"
        raise InvalidValue(
            f"{counts} {'policy' if policies == 1 else 'policies'}: give one per policy, in the same order"
        )
    for at, label in enumerate(labels):
        if not label.strip() or not label.isprintable() or len(label) > LABEL_CHARS_MAX:
            raise InvalidValue(f"label {label[:LABEL_CHARS_MAX]!r} is not 1 to {LABEL_CHARS_MAX} printable characters")
        if label in labels[:at]:
            raise InvalidValue(f"label {label!r} is given twice: labels must be different")


def _check_written(options: StudyOptions) -> None:
    """Refuse a file that cannot be written, or a plot that cannot be drawn, before the simulation, not after it."""
    for path in (options.jobs_out, options.accounts_out, options.plot, options.html):
        if path is not None and not path.parent.is_dir():
            raise InvalidValue(f"{path} cannot be written: there is no directory {path.parent}")
    if options.plot_parts and options.plot is None:
        raise InvalidValue("parts of a plot are for a plot: give its file, too")
    if options.plot is not None:
        from fluxsched.sim.plots import check_path

        check_path(options.plot)


def write_files(study: Study, options: StudyOptions) -> None:
    """Write the results to the files that were asked for, but for a page."""
    if options.jobs_out is not None:
        write_csv(study.results, options.jobs_out)
    if options.accounts_out is not None:
        with options.accounts_out.open("w", newline="", encoding="utf-8") as file:
            write_courses([(result.title, result.accounts) for result in study.results], file)
    if options.plot is not None:
        from fluxsched.sim.plots import PARTS, plot

        study.left_out.extend(plot(study.trace, study.results, options.plot, options.plot_parts or PARTS))


# ---- packages made from templates

NAME_CHARS_MAX = 60
"""Names of policies and plugins stand in tables, file names and one-line specifications."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class PackageKind(NamedTuple):
    """Kind of package to make: `what` it is called, the folder of its template, and the names that are taken."""

    what: str
    template: str
    taken: Callable[[], Collection[str]]

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The files of a new package, and what they are made of."""
        return (
            ("pyproject.toml.in", "pyproject.toml"),
            ("README.md.in", "README.md"),
            (f"{self.what}.py.in", "{module}.py"),
            (f"test_{self.what}.py.in", "test_{module}.py"),
        )


POLICY = PackageKind("policy", "policy_template", known_policies)
PLUGIN = PackageKind("plugin", "plugin_template", known_plugins)


def make_package(kind: PackageKind, name: str, directory: Path) -> list[Path]:
    """Write a package with what works and has this name; all of it, or nothing. Returns its files.

    Raises InvalidValue for a name that cannot be one, Refused for a directory that is there already.
    """
    check_name(kind, name)
    module = f"fluxsched_{name.replace('-', '_')}"
    words = {"name": name, "module": module, "cls": "".join(part.capitalize() for part in name.split("-"))}
    if keyword.iskeyword(words["cls"]):
        words["cls"] += kind.what.capitalize()
    source = files("fluxsched.sim") / kind.template
    texts = {
        directory / made.format(module=module): Template((source / raw).read_text("utf-8")).substitute(words)
        for raw, made in kind.files
    }
    try:
        directory.mkdir()
    except FileExistsError:
        raise Refused(f"{directory} already exists: give another --directory, or remove it") from None
    except FileNotFoundError:
        raise Refused(f"{directory.parent} is not a directory: create it first") from None
    try:
        for path, text in texts.items():
            path.write_text(text, "utf-8")
    except OSError:
        for path in texts:
            path.unlink(missing_ok=True)
        directory.rmdir()
        raise
    return list(texts)


def check_name(kind: PackageKind, name: str) -> None:
    """Raise InvalidValue for what is no name of one, or is taken."""
    what = kind.what
    if len(name) > NAME_CHARS_MAX:
        raise InvalidValue(f"a {what}'s name has at most {NAME_CHARS_MAX} characters: this one has {len(name)}")
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} is not a valid {what} name: use lower-case words with dashes, such as night-shift"
        )
    if name in kind.taken():
        raise InvalidValue(f"{what} {name!r} already exists: see fluxsched {what} list")
