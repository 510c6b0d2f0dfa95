"""The simulator's functions for the command line: one per command, values in, values out; for `policy new` and `plugin
new` a package from a template, complete or not at all.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import zip_longest
from math import inf
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from fluxsched.config.policies import check_files, check_policies, with_plugins
from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.registry import known_plugins, known_policies
from fluxsched.sim.engine.run import DEFAULT_POLICY, LiveInstance, ReplayClock, replay, run
from fluxsched.sim.engine.simulation import Progress
from fluxsched.sim.lublin import USERS, generate
from fluxsched.sim.policy_guard import is_foreign, policy_faults
from fluxsched.sim.report import BANK, as_json, drawing, report
from fluxsched.sim.result import Result, write_courses, write_csv
from fluxsched.sim.traces import Trace, machine_of, print_lines, print_swf, read_trace, with_banks, write_trace

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

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for people."""
        return report(self.trace, self.results, self.by)

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON for programs."""
        return as_json(self.trace, self.results)

    def drawing(self) -> dict[str, Any]:
        """Return the drawing of the results for a page."""
        return drawing(self.trace, self.results)


def simulate(options: StudyOptions, stopwatch: Callable[[], float], bar: Bar | None = None) -> Study:
    """Every policy on the trace, then the files that were asked for. Raises InvalidValue before anything is written."""
    _check_written(options)
    trace = _read(options)
    results = [
        _simulated(trace, policy, label, options, stopwatch, bar)
        for policy, label in zip_longest(options.policies or (DEFAULT_POLICY,), options.labels)
    ]
    return _written(Study(trace, results, options.by), options)


def _read(options: StudyOptions) -> Trace:
    trace = read_trace(options.trace)
    return trace if options.bank is None else with_banks(trace, options.bank)


def _simulated(
    trace: Trace, policy: str, label: str | None, options: StudyOptions, stopwatch: Callable[[], float], bar: Bar | None
) -> Result:
    with policy_faults(policy) if is_foreign(policy) else nullcontext():
        return run(
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
    return _written(Study(trace, [result], options.by), options)


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
    if options.plot is not None:
        from fluxsched.sim.plots import check_path

        check_path(options.plot)


def _written(study: Study, options: StudyOptions) -> Study:
    if options.jobs_out is not None:
        write_csv(study.results, options.jobs_out)
    if options.accounts_out is not None:
        with options.accounts_out.open("w", newline="", encoding="utf-8") as file:
            write_courses([(result.title, result.accounts) for result in study.results], file)
    if options.plot is not None:
        from fluxsched.sim.plots import plot

        study.left_out.extend(plot(study.trace, study.results, options.plot))
    return study


# ---- package

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
