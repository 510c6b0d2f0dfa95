"""`fluxsched submit` and `run`: jobspecs checked for feasibility, submitted one or many at once, followed to their
ends.

Law: only the scheduler's own "never" refuses a job. If its group has no scheduler, or none answers in time, it is
submitted and waits; whatever else is wrong with it the submission says. One question serves all copies of a job. One
stream reports all ends; of output streams OUTPUTS_MAX are open at a time, those of the jobs submitted first. Every
template is checked before anything is submitted. Jobs that differ in a few texts only go in one request, as a jobspec
and these texts. The first job's id is the array's, and whatever refuses it refuses the others too. What the instance
refuses later is reported, with its template, and the others stay.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

import click

from fluxsched.cli.attach import (
    OWN,
    OutputWriter,
    attach,
    outage_hint,
    own_input,
    report_end,
    show_notices,
    window_of,
)
from fluxsched.cli.base import COMMAND_LAST, Command, EndedBySignal, EndingSignals, warn
from fluxsched.cli.jobspec_options import (
    AFTER_ARRAY,
    COPIES_MAX,
    JOB_SCHEMES,
    UNSATISFIABLE,
    build,
    job_options,
    parse_copies,
)
from fluxsched.cli.options import Converted, InstanceHandle, connect, parse_jobid, uri_option
from fluxsched.cli.output import (
    Field,
    ProgressLine,
    duration_text,
    jobid_text,
    parse_format,
    plural,
    print_flushed,
    print_json,
    print_table,
    time_text,
)
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import ANTECEDENTS_MAX, WHEN_MAX
from fluxsched.core.jobid import format_f58, parse_jobids
from fluxsched.core.jobspec import ARRAY_JOBS_MAX, ARRAY_TEXTS_MAX, AskedSize, parse_sizes
from fluxsched.core.quantities import format_duration
from fluxsched.core.request import Count
from fluxsched.core.text import is_text, some_of
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, LimitExceeded, Refused, RPCError
from fluxsched.system.clock import SystemClock

ANSWER_S = 5.0
"""A scheduler answers within milliseconds; one that does not must not prevent submission."""

QUEUES_TRIED_MAX = 8
"""Other queues that are asked about a job that its own can never run."""
HINTED_MAX = 256
"""Jobs typed in the dependencies of one command about which a hint is looked for: a constraint has at most 1,024
values, and each is two.
"""

QUESTIONS_MAX = 100
"""Different jobs of one command that the scheduler is asked to check; a thousand would take a second."""


def check_feasible(handle: InstanceHandle, jobspecs: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> None:
    """Raise Refused if the scheduler says of one of them that it could never run; then none is to be submitted.

    One that is to wait anyway (`--allow-infeasible`) is not checked. Jobs that ask for the same are checked once, and
    of many different ones only the first QUESTIONS_MAX. The error names all that could never run, by `names` where
    there are several.
    """
    asked: set[str] = set()
    faults: list[str] = []
    elsewhere = ""
    for at, jobspec in enumerate(jobspecs):
        system = jobspec.get("attributes", {}).get("system", {})
        wanted = json.dumps(
            (jobspec.get("resources"), system.get("constraints"), system.get("queue"), system.get("duration"))
        )
        if wanted in asked or UNSATISFIABLE in system:
            continue
        if len(asked) == QUESTIONS_MAX:
            break
        asked.add(wanted)
        try:
            if not _asked(handle, jobspec):
                break
        except Refused as fault:
            faults.append(f"{names[at]}: {fault}" if names and names[at] else str(fault))
            elsewhere = _elsewhere(handle, jobspec) if len(faults) == 1 else ""
    if faults:
        text = f"{'; '.join(faults)}; {elsewhere}use --allow-infeasible to submit it and wait until it can"
        raise Refused(text, errno.EOVERFLOW)


def _asked(handle: InstanceHandle, jobspec: dict[str, Any]) -> bool:
    """Return whether there was an answer; raise Refused if the job can never run."""
    from fluxsched.core.jobspec import without_bulk

    try:
        handle.rpc("feasibility.check", {"jobspec": without_bulk(jobspec)}, timeout_s=ANSWER_S)
    except RPCError as fault:
        if fault.errnum == errno.EOVERFLOW:
            queue = jobspec.get("attributes", {}).get("system", {}).get("queue")
            where = f" in queue {queue}" if queue else ""
            raise Refused(f"can never run{where}: {fault}", errno.EOVERFLOW) from None
        return fault.errnum not in (errno.ENOSYS, errno.ETIMEDOUT)
    return True


def _elsewhere(handle: InstanceHandle, jobspec: dict[str, Any]) -> str:
    """Name the queues that could run a job that its own never can; nothing if there are none."""
    from fluxsched.core.jobspec import without_bulk

    system, able = jobspec["attributes"]["system"], []
    with suppress(RPCError):
        names = [name for name in handle.rpc("job-manager.queue-list")["queues"] if name != system.get("queue")]
        for name in names[:QUEUES_TRIED_MAX]:
            other = {**jobspec, "attributes": {**jobspec["attributes"], "system": {**system, "queue": name}}}
            with suppress(RPCError):
                handle.rpc("feasibility.check", {"jobspec": without_bulk(other)}, timeout_s=ANSWER_S)
                able.append(name)
    return f"queue {' or '.join(able)} could run it; " if able else ""


# ---- following submitted jobs

OUTPUTS_MAX = 256
"""Jobs whose output is followed at once: the instance looks at their files fifty times a second."""

StreamItem = Mapping[str, Any] | RPCError | None


class JobFollower:
    """Waits for jobs; `status` is the highest exit status of those that have ended."""

    def __init__(self, handle: InstanceHandle, jobids: Sequence[int], *, output: bool, labelled: bool) -> None:
        self.status = 0
        self.ended = 0
        self._handle = handle
        self._waiting = True
        self._fault: RPCError | None = None
        self._unread = deque(jobids if output else ())
        self._reading = 0
        self._labelled = labelled
        self._output = output
        handle.subscribe("job-manager.wait-all", {"ids": list(jobids)}, self._take_end)
        while self._unread and self._reading < OUTPUTS_MAX:
            self._read_next()

    @property
    def is_done(self) -> bool:
        """Return whether all jobs have ended and all their output is shown. Raises the fault of a failed stream."""
        if self._fault is not None:
            raise self._fault
        return not (self._waiting or self._reading)

    def _take_end(self, result: StreamItem) -> None:
        if isinstance(result, RPCError):
            self._fault = result
        elif result is None:
            self._waiting = False
        else:
            self.ended += 1
            self.status = max(self.status, report_end(result))
            if self._output and result.get("last"):  # submitted again: what it wrote then comes now
                self._unread.append(result["last"])
                if self._reading < OUTPUTS_MAX:
                    self._read_next()

    def _read_next(self) -> None:
        jobid = self._unread.popleft()
        prefix = f"{jobid_text(jobid)}: ".encode(errors="replace") if self._labelled else b""
        writer = OutputWriter(self._labelled, prefix)
        self._reading += 1

        def take(piece: StreamItem) -> None:
            if isinstance(piece, Mapping):
                writer.write(piece)
                return
            writer.finish()
            self._reading -= 1
            self._fault = self._fault or piece
            if self._unread:
                self._read_next()

        self._handle.subscribe("job-manager.output", {"id": jobid, "follow": True}, take)


def follow(
    handle: InstanceHandle, jobids: Sequence[int], *, output: bool, labelled: bool, progress: bool, jps: bool
) -> int:
    """Wait until all jobs have ended and report failures; return the highest exit status."""
    begun_s = SystemClock.monotonic_s()
    line = ProgressLine("jobs", SystemClock.monotonic_s) if progress and sys.stderr.isatty() else None
    follower = JobFollower(handle, jobids, output=output, labelled=labelled)
    try:
        while not follower.is_done:
            handle.listen(None)
            if line is not None:
                line(follower.ended, len(jobids), 0.0)
    finally:
        if line is not None:
            line.clear()
    if jps:
        took_s = max(SystemClock.monotonic_s() - begun_s, 1e-6)
        text = f"{plural(len(jobids), 'job')} in {duration_text(took_s)}: {len(jobids) / took_s:,.1f} jobs/s"
        click.echo(text, err=True)
    return follower.status


# ---- arrays of jobs

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
    own_command: Sequence[str] | None = None
    """The command in place of that of the options, which the template then has in common with others."""

    @property
    def is_copied(self) -> bool:
        """Return whether it has copies by id."""
        return self.copies.ids != (None,)

    @property
    def command(self) -> Sequence[str]:
        """Return the words of the command."""
        words: Sequence[str] = self.options["command"] if self.own_command is None else self.own_command
        return words

    def job(self, copy: int | None) -> dict[str, Any]:
        """Return the jobspec of one copy. Raises InvalidValue."""
        options = self.options if self.own_command is None else {**self.options, "command": self.own_command}
        if self.antecedents:
            after = [{"scheme": "afterok", "value": format_f58(jobid)} for jobid in self.antecedents[copy]]
            options = {**options, "dependencies": [*options["dependencies"], after]}
        if copy is None:
            return build(options)
        return build(filled(options, str(copy)), {CC_VARIABLE: str(copy)} if self.copies.tell else {})

    def name(self, copy: int | None) -> str:
        """Return the name of the job that an error is about."""
        return ", ".join(filter(None, (self.said, "" if copy is None else f"cc {copy}")))


def filled(options: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the options with `{cc}` replaced in command, name, queue, files, directory, environment and attributes."""
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
    """Return the copies that `--cc` and `--bcc` request."""
    if cc is not None and bcc is not None:
        raise click.UsageError("give --cc or --bcc: not both")
    ids = bcc if cc is None else cc
    return Copies() if ids is None else Copies(tuple(ids), tell=cc is not None)


def copy_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--cc` and `--bcc`."""
    idset = Converted("idset", parse_copies)
    handler = click.option("--bcc", type=idset, metavar="IDSET", help="Like --cc, but without FLUX_JOB_CC.")(handler)
    return click.option(
        "--cc", type=idset, metavar="IDSET",
        help="Submit a copy for each id; {cc} and FLUX_JOB_CC have the id.",
    )(handler)  # fmt: skip


class After(NamedTuple):
    """Options about the output and the wait after jobs are submitted."""

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
    """Return the templates with `afterok` of one job for each copy in place of `aftercorr`, for which the instance is
    asked.

    Raises InvalidValue where the other array has more jobs or fewer.
    """
    templates = _with_members(templates, uri)
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
        if _means_several(text):
            ids += _jobs_of(handle, text)
        elif len(texts) == 1:
            ids += _jobs_of(handle, f"{ARRAY}{text}") or [parse_jobid(text)]
        else:
            ids.append(parse_jobid(text))
    if len(ids) != count:
        name = f"{AFTER_ARRAY}:{':'.join(texts)}"
        raise InvalidValue(
            f"{name} means {plural(len(ids), 'job')}, and this command submits {count}: each is to wait for one "
            "of them, so give --cc as many ids, or wait for all with afterok"
        )
    return ids


ARRAY = "array="
"""Prefix of an array in place of a job in a dependency: `afterok:array=ID` waits for all its jobs."""


def _with_members(templates: Sequence[Template], uri: str | None) -> Sequence[Template]:
    """Return the templates with the options that `with_members` makes; those in common stay in common."""
    before = list({id(template.options): template.options for template in templates}.values())
    after = with_members(before, uri)
    if after is before:
        return templates
    made = dict(zip(map(id, before), after, strict=True))
    return [template._replace(options=made[id(template.options)]) for template in templates]


def with_members(asked: Sequence[Mapping[str, Any]], uri: str | None) -> Sequence[Mapping[str, Any]]:
    """Return options with a dependency on each job of an array (`afterok:array=ID`) or of a range of ids
    (`afterok:ID..ID`) in place of one on it: the instance is asked which these are.

    Raises InvalidValue where there is no such job, LimitExceeded where there are more than a job can wait for.
    """
    given = [one for options in asked for each in options["dependencies"] for one in each]
    texts = {one["value"] for one in given if one["scheme"] in JOB_SCHEMES and _means_several(one["value"])}
    if not texts:
        return asked
    with connect(uri) as handle:
        found = {text: _jobs_of(handle, text) for text in texts}
    for text, ids in found.items():
        if not ids:
            raise InvalidValue(f"there is no job {text}")

    def of(one: Mapping[str, str]) -> list[Mapping[str, str]]:
        ids = found.get(one["value"]) if one["scheme"] in JOB_SCHEMES else None
        return [one] if ids is None else [{**one, "value": format_f58(jobid)} for jobid in ids]

    made = []
    for options in asked:
        dependencies = [[two for one in each for two in of(one)] for each in options["dependencies"]]
        _check_number(options["dependencies"], dependencies)
        made.append({**options, "dependencies": dependencies})
    return made


def _means_several(text: str) -> bool:
    return ".." in text or text.startswith(ARRAY)


_AFTER_WAIT = {"afterok": " && ", "afternotok": " || "}
"""Words that have a shell go on by the status of `wait`, else `;`: it is 1 already if one job has failed."""


def _check_number(typed: Sequence[Sequence[Mapping[str, str]]], found: Sequence[Sequence[Mapping[str, str]]]) -> None:
    """Raise LimitExceeded if a job cannot wait for so many, where arrays or ranges of ids are among what was typed."""
    count = len({(one["scheme"], one["value"]) for each in found for one in each if one["scheme"] in JOB_SCHEMES})
    several = [one for each in typed for one in each if one["scheme"] in JOB_SCHEMES and _means_several(one["value"])]
    if count <= ANTECEDENTS_MAX or not several:
        return
    texts = list(dict.fromkeys(one["value"] for one in several))
    schemes = {one["scheme"] for one in several}
    then = _AFTER_WAIT.get(schemes.pop(), "; ") if len(schemes) == 1 else "; "
    waits = [f"fluxsched wait {text.replace(ARRAY, '--array ')}" for text in texts]
    raise LimitExceeded(
        f"a job can wait for {ANTECEDENTS_MAX} others, and with {some_of(texts)} this one would for {count:,}: "
        f"`{then.join([*waits, 'fluxsched submit ...'])}` waits for any number"
    )


def _jobs_of(handle: InstanceHandle, text: str) -> list[int]:
    """Return the jobs of a range of ids, or of an array after ARRAY, in order."""
    if text.startswith(ARRAY):
        constraint: dict[str, Any] = {"array": [parse_jobid(text.removeprefix(ARRAY))]}
    else:
        low, high = parse_jobids(text)
        constraint = {"id": [f"{low}..{high}"]}
    answers = handle.stream("job-manager.select", {"constraint": constraint})
    return sorted(jobid for answer in answers for jobid in answer["ids"])


def hint_of_arrays(handle: InstanceHandle, asked: Iterable[Mapping[str, Any]]) -> None:
    """Warn of a dependency on the first job of an array, other jobs of which are active and not waited for.

    `asked` are options as typed: who gives an array or a range of ids knows how, and its jobs are no jobs typed.
    """
    distinct = {id(options): options for options in asked}.values()
    given = [one for options in distinct for each in options["dependencies"] for one in each]
    texts = {one["value"] for one in given if one["scheme"] in JOB_SCHEMES}
    if not 0 < len(texts) <= HINTED_MAX or any(map(_means_several, texts)):
        return
    ids = sorted(set(map(parse_jobid, texts)))
    others = {"and": [{"states": ["active"]}, {"array": ids}, {"not": [{"id": ids}]}]}
    try:
        found = handle.rpc("job-manager.list", {"constraint": others, "max_entries": 1})["jobs"]
    except RPCError:
        return
    for job in found:
        first = jobid_text(job["array"])
        warn(f"others of array {first} are not waited for: {ARRAY}{first} would mean all of its jobs")


def check(templates: Sequence[Template]) -> list[dict[str, Any]]:
    """Return the first job of each group of `alike` ones. Raises LimitExceeded above COPIES_MAX jobs, InvalidValue
    naming templates.
    """
    count = sum(len(template.copies.ids) for template in templates)
    if count > COPIES_MAX:
        raise LimitExceeded(f"{count:,} jobs exceed the limit of {COPIES_MAX:,} at a time: submit them in parts")
    if count > 1 and any(template.options["notify"] for template in templates):
        raise click.UsageError(
            f"--notify would tell of {count:,} jobs: --wait for them, or give --notify to a job that depends on them"
        )
    made: list[dict[str, Any]] = []
    faults: list[tuple[str, str]] = []
    for group in alike(templates):
        for at, template in enumerate(group):
            if at and all(map(_is_word, template.command)) and template.command[0]:
                continue  # nothing else of it is unlike the first
            try:
                jobspec = template.job(template.copies.ids[0])
            except InvalidValue as fault:
                if not template.said:
                    raise
                faults.append((template.said, str(fault)))
            else:
                made += [] if at else [jobspec]
    if faults:
        raise InvalidValue("; ".join(each_once(faults)))
    return made


def each_once(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Return the faults of templates, each once behind all that have it; at most REFUSALS_SHOWN_MAX of either."""
    having: dict[str, list[str]] = {}
    for said, fault in faults:
        having.setdefault(fault, []).append(said)
    return _first_ones([f"{', '.join(_first_ones(said))}: {fault}" for fault, said in having.items()])


def _first_ones(texts: list[str]) -> list[str]:
    more = len(texts) - REFUSALS_SHOWN_MAX
    return texts[:REFUSALS_SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])


def submit_array(
    handle: InstanceHandle, templates: Sequence[Template], after: After, typed: Iterable[Mapping[str, Any]]
) -> int:
    """Submit all copies of all templates that were checked, print their ids, and wait as wished: the exit status."""
    is_array = len(templates) > 1 or templates[0].is_copied
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
                print_flushed(jobid_text(answer))
            except OSError as gone:  # `| head -1` has what it wants: the others are submitted all the same
                unread = gone
    if unread is not None:
        raise unread
    if not ids:
        [(name, fault)] = faults
        refused = [(name, str(fault)), *_refused_besides(handle, templates)]
        raise Refused("; ".join(each_once(refused)) if name else str(fault), fault.errnum)
    if after.as_json:
        print_json({"ids": ids, **({"array": ids[0]} if is_array else {})})
    for name, fault in faults[:REFUSALS_SHOWN_MAX]:
        warn(f"not submitted: {name}: {fault}")
    if len(faults) > REFUSALS_SHOWN_MAX:
        warn(f"not submitted: {plural(len(faults) - REFUSALS_SHOWN_MAX, 'job')} more")
    hint_of_arrays(handle, typed)
    status = 1 if faults else 0
    if not (after.quiet or after.as_json) and sys.stderr.isatty():
        show_notices(handle)
        outage_hint(handle, ids[0])
    if not (after.wait or after.watch or after.progress or after.jps):
        return status
    shown = {"output": after.watch, "labelled": after.label_io, "progress": after.progress, "jps": after.jps}
    return max(status, follow(handle, ids, **shown))


def _refused_besides(handle: InstanceHandle, templates: Sequence[Template]) -> list[tuple[str, str]]:
    """Return which others the instance would not accept either, and why: asked about are the first job of each of the
    next WHEN_MAX groups of `alike` ones, of which nothing is submitted.
    """
    others = [group[0] for group in islice(alike(templates), 1, WHEN_MAX + 1)]
    if not others:
        return []
    request = {"jobspecs": [each.job(each.copies.ids[0]) for each in others], "urgency": others[0].options["urgency"]}
    try:
        found = handle.rpc("job-manager.when", request)["estimates"]
    except RPCError:  # an older instance, or the urgency is not for this user
        return []
    return [(each.said, answer["when"]) for each, answer in zip(others, found, strict=True) if answer["refused"]]


def _submitted(
    handle: InstanceHandle, templates: Sequence[Template], is_array: bool
) -> Iterator[tuple[str, int | FluxschedError]]:
    """Each job's name and its id or why it was refused, in order."""
    if not is_array:
        [template] = templates
        options, [copy] = template.options, template.copies.ids
        request = {"jobspec": template.job(copy), "urgency": options["urgency"], **_flags(options)}
        for answer in handle.rpc_each("job-manager.submit", [request]):
            yield template.name(copy), answer if isinstance(answer, FluxschedError) else int(answer["id"])
        return
    names = deque[list[str]]()
    array = 0

    def payloads(some: Iterable[ArrayRequest]) -> Iterator[dict[str, Any]]:
        for request in some:
            names.append(request.names())
            yield request.payload(array)

    requests = (request for group in alike(templates) for request in requests_of(group))
    for first in (True, False):
        source = [next(requests)] if first else requests
        for answer in handle.rpc_each("job-manager.submit-array", payloads(source), window=REQUESTS_WINDOW):
            found = _answers(answer, names.popleft())
            if not array:
                array = next((each for _, each in found if isinstance(each, int)), 0)
            yield from found if array else found[:1]
        if not array:
            return


def _answers(answer: Mapping[str, Any] | RPCError, names: Sequence[str]) -> list[tuple[str, int | FluxschedError]]:
    """Return the id or the fault of each job of a request."""
    if isinstance(answer, FluxschedError):
        return [(name, answer) for name in names]
    faults = {at: RPCError(text, errnum) for at, errnum, text in answer["refused"]}
    return [(name, faults.get(at) or int(answer["ids"][at])) for at, name in enumerate(names)]


def _flags(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"flags": options["flags"]} if options["flags"] else {}


# ---- requests of many jobs

REQUESTS_WINDOW = 8
"""Requests of an array that are under way: each is one turn of the instance."""

TEXTS_CHARS_MAX = 1 << 20
"""Characters of the texts of one request: messages have some megabytes."""

_SHELL = ("attributes", "system", "shell", "options")
_PATHS: Mapping[str, tuple[str, ...]] = {
    "job_name": ("attributes", "system", "job", "name"),
    "input": (*_SHELL, "input", "stdin", "path"),
    "output": (*_SHELL, "output", "stdout", "path"),
    "error": (*_SHELL, "output", "stderr", "path"),
}
"""Places in the jobspec of options that a request can have for each job."""


def _is_word(word: str) -> bool:
    return is_text(word) and "\0" not in word


def alike(templates: Sequence[Template]) -> Iterator[list[Template]]:
    """Yield the templates in groups, in order: those of one differ in words of their commands only."""

    def key(template: Template) -> tuple[int, int]:
        is_own = template.own_command is None or template.antecedents
        return id(template) if is_own else id(template.options), len(template.command)

    return (list(group) for _, group in groupby(templates, key))


ArrayRow = tuple[Template, int | None, Sequence[str]]
"""A template, the copy and its texts."""


class ArrayRequest(NamedTuple):
    """Jobs of one request: a jobspec, the paths of texts in it, and for each job its template, copy and texts."""

    jobspec: dict[str, Any]
    paths: Sequence[Sequence[str | int]]
    jobs: Sequence[tuple[Template, int | None]]
    texts: Sequence[Sequence[str]]

    def names(self) -> list[str]:
        """Return what errors call the jobs."""
        return [template.name(copy) for template, copy in self.jobs]

    def payload(self, array: int) -> dict[str, Any]:
        """Return the payload that submits them as part of an array (0: a new one)."""
        options = self.jobs[0][0].options
        more = {"array": array, "urgency": options["urgency"], **_flags(options)}
        return {"jobspec": self.jobspec, "paths": self.paths, "texts": self.texts, **more}


def requests_of(group: Sequence[Template]) -> Iterator[ArrayRequest]:
    """Yield the jobs of templates that are alike in requests, or each in its own if more than a few texts differ."""
    jobs = ((template, copy) for template in group for copy in template.copies.ids)
    first, copy = group[0], group[0].copies.ids[0]
    jobspec = first.job(copy)
    places = _places(group, jobspec)
    if places is None:
        for template, copy in jobs:
            yield ArrayRequest(template.job(copy), [], [(template, copy)], [[]])
        return
    for some in _bounded((template, copy, [text(template, copy) for _, text in places]) for template, copy in jobs):
        yield ArrayRequest(jobspec, [path for path, _ in places], [job[:2] for job in some], [job[2] for job in some])


TextOf = Callable[[Template, int | None], str]
DifferingText = tuple[Sequence[str | int], TextOf]


def _places(group: Sequence[Template], jobspec: dict[str, Any]) -> list[DifferingText] | None:
    """Return where the jobs differ, and how; None if they differ in more than their commands and places of `_PATHS`."""
    first, copies = group[0], group[0].copies
    options, is_copied = first.options, first.is_copied
    found: list[DifferingText] = []
    for at, words in enumerate(zip(*(template.command for template in group), strict=True)):
        if len(set(words)) > 1 or (is_copied and CC in words[0]):
            found.append((("tasks", 0, "command", at), partial(_word, at)))
    if is_copied:
        named = [name for name in _TEXTS if CC in (options[name] or "")]
        elsewhere = [*options["env_rules"], *options["attributes"], *(os.path.dirname(options[name]) for name in named)]
        if first.antecedents or options.get("parts") or any(CC in text for text in elsewhere) or {*named} - {*_PATHS}:
            return None
        found += [(_PATHS[name], partial(_option, name)) for name in named]
        if copies.tell:
            found.append((("attributes", "system", "environment", CC_VARIABLE), _cc))
    is_there = all(_text_at(jobspec, path) == text(first, copies.ids[0]) for path, text in found)
    return found if is_there and len(found) <= ARRAY_TEXTS_MAX else None


def _word(at: int, template: Template, copy: int | None) -> str:
    return _filled(template.command[at], copy)


def _option(name: str, template: Template, copy: int | None) -> str:
    return _filled(template.options[name], copy)


def _cc(template: Template, copy: int | None) -> str:
    return str(copy)


def _filled(text: str, copy: int | None) -> str:
    return text if copy is None else text.replace(CC, str(copy))


def _text_at(tree: Any, path: Sequence[str | int]) -> Any:
    try:
        for key in path:
            tree = tree[key]
    except (LookupError, TypeError):
        return None
    return tree


def _bounded(jobs: Iterable[ArrayRow]) -> Iterator[list[ArrayRow]]:
    """Yield the jobs in as many as one request may have."""
    some: list[ArrayRow] = []
    chars = 0
    for job in jobs:
        size = sum(map(len, job[2]))
        if some and (len(some) == ARRAY_JOBS_MAX or chars + size > TEXTS_CHARS_MAX):
            yield some
            some, chars = [], 0
        some.append(job)
        chars += size
    if some:
        yield some


# ---- `submit` and `run`

PTY = "pty"
"""The shell option for a pseudo-terminal, as in Flux."""


def refuse_own_input(options: Mapping[str, Any]) -> None:
    """`--input=-` is for who stays. Raises click.BadParameter."""
    if options["input"] == OWN:
        raise click.BadParameter("input cannot be forwarded to a background job: use run", param_hint="'--input'")


@click.command("submit", cls=Command, context_settings=COMMAND_LAST)
@click.option("--when", is_flag=True, help="Submit nothing: say when the job would start. COMMAND may be left out.")
@click.option(
    "--or",
    "sizes",
    multiple=True,
    metavar="NODES[:LIMIT],...",
    type=Converted("sizes", parse_sizes),
    help="With --when: also for these numbers of nodes, such as 16,32 or 64:30m.",
)
@copy_options
@after_options
@uri_option
@job_options
def submit(
    cc: Idset | None, bcc: Idset | None, after: After, uri: str | None, dry_run: bool,
    when: bool, sizes: Sequence[Sequence[AskedSize]], **options: Any,
) -> int:  # fmt: skip
    """Submit a job, or an array of copies, and print each id.

    Options come before COMMAND. Without --input the tasks read what `job attach` sends
    them. The id of the first copy identifies the array: cancel, wait, kill, urgency and jobs accept it as --array.
    """
    if when or sizes:
        if not when:
            raise click.UsageError("--or adds sizes to a question: give --when, too")
        if cc is not None or bcc is not None or dry_run:
            raise click.UsageError(
                "--when asks about one job, with --or about several sizes: without --cc or --dry-run"
            )
        if (count := 1 + sum(map(len, sizes))) > WHEN_MAX:
            raise click.UsageError(f"{count} sizes, the limit is {WHEN_MAX}: ask about fewer at a time")
        [asked] = with_members([options], uri)
        return ask_when(uri, asked, list(chain.from_iterable(sizes)), after.as_json)
    refuse_own_input(options)
    [template] = paired([Template(options, copies_of(cc, bcc))], uri)
    jobspecs = check([template])
    if dry_run:
        for copy in template.copies.ids:
            print_json(template.job(copy))
        return 0
    with connect(uri) as handle:
        check_feasible(handle, jobspecs)
        return submit_array(handle, [template], after, [options])


# ---- `submit --when`


class StartRow(NamedTuple):
    """A size that was asked about, or the shorter limit with which it would start now."""

    nodes: str
    limit_s: float
    start_s: float | None
    when: str


def ask_when(uri: str | None, options: Mapping[str, Any], sizes: Sequence[AskedSize], as_json: bool) -> int:
    """Print when the job would start, with its own size and each of these; 1 if none would be accepted, or can run."""
    own = options["time_limit"]
    given = [(options["nodes"], own), *((nodes, own if limit_s is None else limit_s) for nodes, limit_s in sizes)]
    command = options["command"] or (() if options.get("parts") else ("true",))
    asked = [{**options, "command": command, "nodes": nodes, "time_limit": limit_s} for nodes, limit_s in given]
    with connect(uri) as handle:
        request = {"jobspecs": [build(each) for each in asked], "urgency": options["urgency"]}
        found = handle.rpc("job-manager.when", request)["estimates"]
    if as_json:
        print_json(found)
    else:
        _print_starts(given, found)
    return int(all(each["refused"] for each in found))


def _print_starts(given: Sequence[AskedSize], found: Sequence[Mapping[str, Any]]) -> None:
    now_s = SystemClock.wall_s()
    rows: list[StartRow] = []
    for (nodes, limit_s), answer in zip(given, found, strict=True):
        size = "-" if nodes is None else str(Count.parse(nodes))
        rows.append(StartRow(size, answer.get("limit") or limit_s or 0.0, answer["start"], answer["when"]))
        if answer["short"]:
            rows.append(StartRow(size, answer["short"], now_s, "it fits now, but not for longer"))

    def starts(row: StartRow) -> str:
        if row.start_s is None:
            return "-"
        return "now" if row.start_s - now_s < 1.0 else f"in {duration_text(row.start_s - now_s)}"

    fields = {
        "nodes": Field("NODES", lambda row: row.nodes),
        "limit": Field("LIMIT", lambda row: format_duration(row.limit_s) if row.limit_s else "-"),
        "start": Field("START", starts),
        "at": Field("AT", lambda row: "-" if row.start_s is None else time_text(row.start_s, "%b%d %H:%M")),
        "when": Field("WHY", lambda row: row.when),
    }
    print_table(rows, parse_format("{nodes:>5} {limit:<8} {start:<10} {at:<12} {when}", fields), fields)


@click.command("run", cls=Command, context_settings=COMMAND_LAST)
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@click.option("--pty", is_flag=True, help="Give the only task a terminal: this one, if there is one. Ctrl-\\ detaches.")
@uri_option
@job_options
def run(label_io: bool, pty: bool, uri: str | None, dry_run: bool, **options: Any) -> int:
    """Run a job in the foreground: show its output and exit with its status.

    Ending this command by Ctrl-C, SIGTERM or SIGHUP cancels the job. Input piped into this command is forwarded to
    all tasks; on a terminal they read /dev/null, unless --input=- forwards what is typed. With --pty (Flux's
    -o pty.interactive) all keys go to the job once it has started, Ctrl-C too, but Ctrl-\\, which leaves it running.
    """
    source, terminal = None, False
    if pty or any(setting.split(".")[0] == PTY for setting in options["shell_options"]):
        source = _terminal_options(options)
        terminal = os.isatty(source)
    elif options["input"] in (None, OWN):
        source = own_input(terminal=options["input"] == OWN)
        options["input"] = os.devnull if source is None else None
    [asked] = with_members([options], uri)
    jobspec = build(asked)
    if dry_run:
        print_json(jobspec)
        return 0
    with connect(uri) as handle, own_job(handle, jobspec, options, _reason) as jobid:
        show_notices(handle)
        return attach(handle, jobid, labelled=label_io, source=source, terminal=terminal)


def _terminal_options(options: dict[str, Any]) -> int:
    """Ask for a terminal with a window of the size that ours has; the descriptor of what its task reads."""
    source = own_input(terminal=True)
    if source is None:
        source = os.open(os.devnull, os.O_RDONLY)
    window = window_of(source)
    size = () if window is None else (f"{PTY}.rows={window[0]}", f"{PTY}.columns={window[1]}")
    given = [setting for setting in options["shell_options"] if setting != PTY]
    options["shell_options"] = (f"{PTY}.interactive", *size, *given)
    if options["input"] == OWN:
        options["input"] = None
    return source


@contextmanager
def own_job(
    handle: InstanceHandle, jobspec: dict[str, Any], options: Mapping[str, Any], reason: Callable[[BaseException], str]
) -> Iterator[int]:
    """Submit a job, by its id, that does not outlive this command if a signal ends it or its output cannot be written.

    `reason` is the note of its exception then. Raises Refused for a job that could never run.
    """
    with EndingSignals() as signals:
        check_feasible(handle, [jobspec])
        signals.hold()
        jobid = submit_one(handle, jobspec, options)
        try:
            signals.release()
            hint_of_arrays(handle, [options])
            yield jobid
        except (KeyboardInterrupt, OSError) as end:
            try:
                with connect(handle.uri) as another:  # the signal may have come within a message of the first
                    another.rpc("job-manager.cancel", {"id": jobid, "note": reason(end)})
            except Disconnected as gone:
                warn(f"{jobid_text(jobid)} is not canceled and may go on: {gone}")
            except RPCError:
                pass  # it has ended by itself
            raise


def submit_one(handle: InstanceHandle, jobspec: dict[str, Any], options: Mapping[str, Any]) -> int:
    """Submit a job with the urgency and the flags that `options` have; its id."""
    if not options["flags"]:
        return handle.submit_many([jobspec], options["urgency"])[0]
    request = {"jobspec": jobspec, "urgency": options["urgency"], "flags": options["flags"]}
    return int(handle.rpc("job-manager.submit", request)["id"])


def _reason(end: BaseException) -> str:
    """Why `run` ends before its job: for the note of the job's exception."""
    if isinstance(end, OSError):
        return "the output of run is closed or full"
    if isinstance(end, EndedBySignal) and end.signum != signal.SIGINT:
        return f"run was ended by {signal.Signals(end.signum).name}"
    return "interrupted by user"
