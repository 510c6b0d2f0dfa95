"""Which jobs a command acts on: the options that `jobs`, `cancel`, `kill`, `urgency` and `wait` share, and the
constraint (rfc/jobs.md, job-manager.select) that they mean.

Law: jobs are named one by one, and then each must be there; or they are selected, by options that must all hold, and
then those that are there are meant. What was selected can have ended when its turn comes: that is no error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from fluxsched.cli.common import complete, show
from fluxsched.cli.common.options import JOBID, Converted, Function, InstanceHandle, WordList, note_typed, parse_jobid
from fluxsched.errors import InvalidValue
from fluxsched.views.jobs import (
    ANY_USER,
    JOB_STATES,
    RANGES,
    RESULTS,
    JobConstraint,
    Jobs,
    on_targets,
    terms_of,
    user_id,
)

STATE_WORDS = WordList((*JOB_STATES, *RESULTS))


class JobSelection(NamedTuple):
    """What the options said: what must hold, by option, and the jobs named one by one."""

    jobs: Jobs
    terms: Mapping[str, JobConstraint]
    everything: bool = False

    @property
    def is_selection(self) -> bool:
        """Whether jobs are selected, not named."""
        return bool(self.terms) or self.everything

    @property
    def is_definite(self) -> bool:
        """Whether it means certain jobs, whatever has become of them: an array, or a range of ids."""
        return "--array" in self.terms or RANGES in self.terms

    @property
    def names_states(self) -> bool:
        """Whether it says in which states jobs should be, or how they ended."""
        return "--filter" in self.terms

    def constraint(self, *more: JobConstraint) -> JobConstraint:
        """All terms, and `more`."""
        return {"and": [*self.terms.values(), *more]}

    def said(self) -> str:
        """The options that were given, for an error."""
        ranges = ", ".join("..".join(show.jobid_text(int(id)) for id in each.split("..")) for each in self.jobs.ranges)
        return ", ".join(ranges if term == RANGES else term for term in self.terms) or "--all"


def _named_sets(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> JobConstraint | None:
    """Jobs of these sets: one's own, unless it is said whose. Other users' sets may have the same names."""
    if not names:
        return None
    if not all(names):  # an empty variable of a script must not select more
        raise click.BadParameter("the name of a set is empty", ctx, param)
    sets: JobConstraint = {"set": list(names)}
    if ctx.get_parameter_source("user") is not ParameterSource.DEFAULT:
        return sets
    return {"and": [sets, {"userid": [os.getuid()]}]}


def _split(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for text in texts for name in text.split(","))
    if not all(names):  # an empty variable of a script must not select more
        raise click.BadParameter("the name of a queue is empty", ctx, param)
    return names


def _operands(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Jobs:
    """Job ids and ranges of them; an error names every text that is neither."""
    from fluxsched.core.jobid import parse_jobids

    ids, ranges, faults = [], [], []
    for text in texts:
        try:
            if ".." in text:
                low, high = parse_jobids(text)
                ranges.append(f"{low}..{high}")
            else:
                ids.append(parse_jobid(text))
                note_typed(ctx, ids[-1], text)
        except InvalidValue as error:
            faults.append(str(error))
    if faults:
        raise click.BadParameter("; ".join(faults), ctx, param)
    return Jobs(tuple(dict.fromkeys(ids)), tuple(ranges))


def jobs_argument(handler: Function) -> Function:
    """The operands JOBID... and JOBID..JOBID; the handler gets them as `jobs`."""
    return click.argument(
        "jobs", metavar="[JOBID...]", nargs=-1, callback=_operands, shell_complete=complete.jobids
    )(handler)


def filter_options(*state_flags: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that select jobs, without operands; the handler gets `terms(jobs)`, see `terms_of`.

    `state_flags`: further names of `-f/--filter`.
    """

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        def run(*args: Any, user: int | None, names: tuple[str, ...], queues: tuple[str, ...],
                words: tuple[str, ...] | None, array: tuple[int, ...], sets: JobConstraint | None,
                targets: JobConstraint | None, **more: Any) -> Any:  # fmt: skip
            def terms(jobs: Jobs) -> dict[str, JobConstraint]:
                return terms_of(
                    jobs, user=user, names=names, queues=queues, words=words, array=array, sets=sets, targets=targets
                )

            return handler(*args, terms=terms, **more)

        for option in reversed((
            click.option("-u", "--user", metavar="USER", default=ANY_USER, type=Converted("user", user_id),
                         is_eager=True, help="Only jobs of this user. [default: all]"),
            click.option("--name", "names", metavar="NAME", multiple=True,
                         help="Only jobs of this name; '*', '?' and '[...]' are wildcards."),
            click.option("-q", "--queue", "queues", metavar="NAME,...", multiple=True, callback=_split,
                         shell_complete=complete.queues, help="Only jobs in these queues."),
            click.option("-f", "--filter", *state_flags, "words", type=STATE_WORDS, metavar="STATE|RESULT,...",
                         help="Only jobs in these states or with these results: pending, running, failed, ..."),
            click.option("--array", metavar="JOBID", multiple=True, type=JOBID,
                         help="Only jobs of the array whose first job this is."),
            click.option("--set", "sets", metavar="NAME", multiple=True, callback=_named_sets,
                         help="Only jobs of this set; your own, unless --user is given."),
            click.option("-i", "--include", "targets", metavar="TARGETS", shell_complete=complete.targets,
                         type=Converted("targets", on_targets),
                         help="Only jobs that have resources on these targets."),
        )):  # fmt: skip
            run = option(run)
        return run

    return decorate


def selection_options(*state_flags: str, all_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add operands and options that say which jobs; the handler gets them as `asked`. One of both must be given."""

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        def run(*args: Any, jobs: Jobs, all_jobs: bool, terms: Callable[[Jobs], dict[str, JobConstraint]],
                **more: Any) -> Any:  # fmt: skip
            asked = JobSelection(jobs, terms(jobs), all_jobs)
            if jobs.ids and not jobs.ranges and asked.is_selection:
                raise click.UsageError(f"give job ids, or {asked.said()}: not both")
            if all_jobs and jobs.ranges:
                raise click.UsageError("give job ids, or --all: not both")
            if not jobs.ids and not asked.is_selection:
                raise click.UsageError("give job ids, or --all, or options that select jobs, such as --name or --user")
            return handler(*args, asked=asked, **more)

        chosen = click.option("--all", "all_jobs", is_flag=True, help=all_help)(run)
        return jobs_argument(filter_options(*state_flags)(chosen))

    return decorate


def selected(handle: InstanceHandle, asked: JobSelection, *more: JobConstraint) -> Iterator[int]:
    """The ids of the jobs that the selection means, active ones first, from the latest."""
    for answer in handle.stream("job-manager.select", {"constraint": asked.constraint(*more)}):
        yield from answer["ids"]


def described(
    handle: InstanceHandle, asked: JobSelection, states: JobConstraint, count: int
) -> Sequence[Mapping[str, Any]]:
    """At most `count` of the jobs that are asked and in these states, as job-manager.list has them."""
    request: dict[str, Any] = {"constraint": asked.constraint(states), "max_entries": count}
    if not asked.is_selection:
        request["ids"] = list(asked.jobs.ids)
    found: list[Mapping[str, Any]] = handle.rpc("job-manager.list", request)["jobs"]
    return found


def one_line(job: Mapping[str, Any]) -> str:
    """A job in a few words: `ƒ2 solver (RUN, kim)`."""
    return f"{show.jobid_text(job['id'])} {job['name']} ({job['state']}, {show.user_name(job['userid'])})"
