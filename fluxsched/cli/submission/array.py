"""Many jobs with one command: an array. Templates become jobspecs, and these jobs.

Law: every template is checked before anything is submitted. The first job goes alone, for its id is the array's and
whatever refuses it refuses the others too; they follow many at a time. What the instance refuses then is reported, with
its template, and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import warn
from fluxsched.cli.common.options import Converted, InstanceHandle, connect, parse_jobid
from fluxsched.cli.jobs.follow import follow
from fluxsched.cli.submission.jobspec_options import AFTER_ARRAY, COPIES_MAX, build, parse_copies
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58, parse_jobids
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused

CC = "{cc}"
CC_VARIABLE = "FLUX_JOB_CC"
REFUSALS_SHOWN_MAX = 20
"""Refused jobs that are reported one by one."""

_TEXTS = ("queue", "bank", "job_set", "job_name", "input", "output", "error", "cwd")
_LISTS = ("command", "env_rules", "attributes")


class Copies(NamedTuple):
    """The ids of `--cc` or `--bcc`; with `tell` each job has its own in its environment."""

    ids: tuple[int | None, ...] = (None,)
    tell: bool = False


class Template(NamedTuple):
    """The options of a job (with `{cc}` in texts), its copies, and what an error calls it."""

    options: Mapping[str, Any]
    copies: Copies = Copies()
    said: str = ""
    antecedents: Mapping[int | None, Sequence[int]] = {}
    """Of each copy, the jobs of other arrays that must have succeeded: what `paired` finds."""

    def job(self, copy: int | None) -> dict[str, Any]:
        """The jobspec of one copy. Raises InvalidValue."""
        options = self.options
        if self.antecedents:
            after = [{"scheme": "afterok", "value": format_f58(jobid)} for jobid in self.antecedents[copy]]
            options = {**options, "dependencies": [*options["dependencies"], after]}
        if copy is None:
            return build(options)
        return build(filled(options, str(copy)), {CC_VARIABLE: str(copy)} if self.copies.tell else {})

    def name(self, copy: int | None) -> str:
        """Which job an error is about."""
        return ", ".join(filter(None, (self.said, "" if copy is None else f"cc {copy}")))


def filled(options: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The options with `{cc}` replaced in command, name, queue, files, directory, environment and attributes."""
    made = dict(options)
    for name in _TEXTS:
        if made[name] is not None:
            made[name] = made[name].replace(CC, text)
    for name in _LISTS:
        made[name] = [word.replace(CC, text) for word in made[name]]
    parts = options.get("parts", ())
    made["parts"] = [part._replace(command=[word.replace(CC, text) for word in part.command]) for part in parts]
    return made


def copies_of(cc: Idset | None, bcc: Idset | None) -> Copies:
    """What `--cc` and `--bcc` ask for."""
    if cc is not None and bcc is not None:
        raise click.UsageError("give --cc or --bcc: not both")
    ids = bcc if cc is None else cc
    return Copies() if ids is None else Copies(tuple(ids), tell=cc is not None)


def copy_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--cc` and `--bcc`."""
    idset = Converted("idset", parse_copies)
    handler = click.option("--bcc", type=idset, metavar="IDSET", help="Like --cc, but without FLUX_JOB_CC.")(handler)
    return click.option(
        "--cc", type=idset, metavar="IDSET",
        help="Submit a copy for each id; {cc} and FLUX_JOB_CC have the id.",
    )(handler)  # fmt: skip


class After(NamedTuple):
    """What is printed, and what is waited for, once jobs are submitted."""

    wait: bool
    watch: bool
    label_io: bool
    progress: bool
    jps: bool
    quiet: bool
    as_json: bool


def after_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of After; the handler gets them as `after`."""

    @wraps(handler)
    def run(*args: Any, wait: bool, watch: bool, label_io: bool, progress: bool, jps: bool, quiet: bool,
            as_json: bool, **more: Any) -> Any:  # fmt: skip
        return handler(*args, after=After(wait, watch, label_io, progress, jps, quiet, as_json), **more)

    for option in reversed((
        click.option("--wait", is_flag=True, help="Wait for the jobs to end and exit with the highest status."),
        click.option("--watch", is_flag=True, help="Show the output of all jobs; implies --wait."),
        click.option("-l", "--label-io", is_flag=True, help="With --watch: prefix each line with job and task."),
        click.option("--progress", is_flag=True, help="Show progress on the terminal; implies --wait."),
        click.option("--jps", is_flag=True, help="Print the throughput (jobs/s) at the end; implies --wait."),
        click.option("--quiet", is_flag=True, help="Do not print the job ids."),
        click.option("--json", "as_json", is_flag=True, help="Print the ids, and the array's, as JSON."),
    )):  # fmt: skip
        run = option(run)
    return run


def paired(templates: Sequence[Template], uri: str | None) -> Sequence[Template]:
    """The templates with `afterok` of one job for each copy in place of `aftercorr`, for which the instance is asked.

    Raises InvalidValue where the other array has more jobs or fewer.
    """
    asked = [[_arrays(given) for given in template.options["dependencies"]] for template in templates]
    distinct = set(chain.from_iterable(asked)) - {()}
    if not distinct:
        return templates
    count = sum(len(template.copies.ids) for template in templates)
    with connect(uri) as handle:
        found = {texts: _members(handle, texts, count) for texts in distinct}
    made, first = [], 0
    for template, each in zip(templates, asked, strict=True):
        copies, options = template.copies.ids, template.options
        columns = [found[texts][first : first + len(copies)] for texts in each if texts]
        others = [[one for one in given if one["scheme"] != AFTER_ARRAY] for given in options["dependencies"]]
        antecedents = dict(zip(copies, zip(*columns, strict=True), strict=True)) if columns else {}
        made.append(template._replace(options={**options, "dependencies": others}, antecedents=antecedents))
        first += len(copies)
    return made


def _arrays(given: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(one["value"] for one in given if one["scheme"] == AFTER_ARRAY)


def _members(handle: InstanceHandle, texts: tuple[str, ...], count: int) -> list[int]:
    """As many jobs as `count`: those of the array that one id names, else those of several ids and ranges of ids."""
    ids: list[int] = []
    for text in texts:
        is_range = ".." in text
        low, high = parse_jobids(text) if is_range else (parse_jobid(text),) * 2
        if is_range or len(texts) == 1:
            constraint = {"id": [f"{low}..{high}"]} if is_range else {"array": [low]}
            answers = handle.stream("job-manager.select", {"constraint": constraint})
            ids += sorted(jobid for answer in answers for jobid in answer["ids"]) or ([] if is_range else [low])
        else:
            ids.append(low)
    if len(ids) != count:
        name = f"{AFTER_ARRAY}:{':'.join(texts)}"
        raise InvalidValue(
            f"{name} means {show.plural(len(ids), 'job')}, and this command submits {count}: each is to wait for one "
            "of them, so give --cc as many ids, or wait for all with afterok"
        )
    return ids


def check(templates: Sequence[Template]) -> list[dict[str, Any]]:
    """The first job of each template. Raises LimitExceeded above COPIES_MAX jobs, InvalidValue naming templates."""
    count = sum(len(template.copies.ids) for template in templates)
    if count > COPIES_MAX:
        raise LimitExceeded(f"{count:,} jobs exceed the limit of {COPIES_MAX:,} at a time: submit them in parts")
    made, faults = [], []
    for template in templates:
        try:
            made.append(template.job(template.copies.ids[0]))
        except InvalidValue as fault:
            if not template.said:
                raise
            faults.append(f"{template.said}: {fault}")
    if faults:
        more = [f"and {len(faults) - REFUSALS_SHOWN_MAX} more"] if len(faults) > REFUSALS_SHOWN_MAX else []
        raise InvalidValue("; ".join(faults[:REFUSALS_SHOWN_MAX] + more))
    return made


def submit(handle: InstanceHandle, templates: Sequence[Template], after: After) -> int:
    """Submit all copies of all templates that were checked, print their ids, and wait as wished: the exit status."""
    is_array = len(templates) > 1 or templates[0].copies.ids != (None,)
    ids: list[int] = []
    faults: list[tuple[str, FluxschedError]] = []
    unread: OSError | None = None
    for name, answer in _submitted(handle, templates, is_array):
        if isinstance(answer, FluxschedError):
            faults.append((name, answer))
            if not ids:
                break
            continue
        ids.append(answer)
        if not (after.quiet or after.as_json or unread):
            try:
                show.flushed(show.jobid_text(answer))
            except OSError as gone:  # `| head -1` has what it wants: the others are submitted all the same
                unread = gone
    if unread is not None:
        raise unread
    if not ids:
        [(name, fault)] = faults
        raise Refused(f"{name}: {fault}" if name else str(fault), fault.errnum)
    if after.as_json:
        show.print_json({"ids": ids, **({"array": ids[0]} if is_array else {})})
    for name, fault in faults[:REFUSALS_SHOWN_MAX]:
        warn(f"not submitted: {name}: {fault}")
    if len(faults) > REFUSALS_SHOWN_MAX:
        warn(f"not submitted: {show.plural(len(faults) - REFUSALS_SHOWN_MAX, 'job')} more")
    status = 1 if faults else 0
    if not (after.wait or after.watch or after.progress or after.jps):
        return status
    shown = {"output": after.watch, "labelled": after.label_io, "progress": after.progress, "jps": after.jps}
    return max(status, follow(handle, ids, **shown))


def _submitted(
    handle: InstanceHandle, templates: Sequence[Template], is_array: bool
) -> Iterator[tuple[str, int | FluxschedError]]:
    """Each job's name and its id or why it was refused, in order."""
    jobs = ((template, copy) for template in templates for copy in template.copies.ids)
    names: list[str] = []

    def requests(some: Iterator[tuple[Template, int | None]], array: int | None) -> Iterator[dict[str, Any]]:
        for template, copy in some:
            jobspec = template.job(copy)
            if array is not None:
                jobspec["attributes"]["system"]["array"] = array
            names.append(template.name(copy))
            options = template.options
            flags = {"flags": options["flags"]} if options["flags"] else {}
            yield {"jobspec": jobspec, "urgency": options["urgency"], **flags}

    [first] = handle.rpc_each("job-manager.submit", requests(iter([next(jobs)]), 0 if is_array else None))
    if isinstance(first, FluxschedError):
        yield names[0], first
        return
    others = handle.rpc_each("job-manager.submit", requests(jobs, int(first["id"])))
    for at, answer in enumerate(chain([first], others)):
        yield names[at], answer if isinstance(answer, FluxschedError) else int(answer["id"])
