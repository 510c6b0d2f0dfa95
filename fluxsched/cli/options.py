"""Options that commands share: how a command reaches the instance, values of options, and completion in the shell.

`connected` opens a handle for the handler, or the one that the context brings (`main(obj=connect)`): tests and programs
that embed the commands put their own in.

Law: pressing TAB never fails, prints or waits long. Where no instance answers soon there is nothing to offer.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, time, timedelta
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import click
from click.shell_completion import CompletionItem

from fluxsched.cli.base import warn
from fluxsched.cli.output import Field, Format, interactive, jobid_text, parse_format, print_json, print_table
from fluxsched.core.text import not_among, printable
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, LimitExceeded, Refused, RPCError
from fluxsched.system.clock import SystemClock

if TYPE_CHECKING:
    from fluxsched.client.blocking import ReadableFile
    from fluxsched.core.idset import Idset

TIMEOUT_S = 0.5
"""Time that the instance has to answer a completion (seconds), which must be faster than typing."""

OFFERED_MAX = 1000
"""Words offered at a time: a longer list is not readable, and typing another letter narrows it."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _ask(ctx: click.Context, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an answer of the instance, empty if there is none."""
    opener = ctx.find_root().obj
    if opener is None:
        from fluxsched.client.blocking import connect_sync as opener
    try:
        with opener(ctx.params.get("uri")) as handle:
            answer: dict[str, Any] = handle.rpc(topic, payload, timeout_s=TIMEOUT_S)
    except (FluxschedError, OSError):
        return {}
    return answer


def _fitting(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the words that are safe on a terminal: others would not be the same once escaped."""
    fitting = [CompletionItem(word) for word in words if word.startswith(incomplete) and printable(word) == word]
    return fitting[:OFFERED_MAX]


def _of(topic: str, names: Callable[[Mapping[str, Any]], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _fitting(names(_ask(ctx, topic)), incomplete)

    return complete


def complete_jobids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the newest jobs, each with its name and state."""
    from fluxsched.core.jobid import format_f58

    found = _ask(ctx, "job-manager.list", {"max_entries": OFFERED_MAX}).get("jobs", [])
    texts = [(format_f58(job["id"], ascii=incomplete.startswith("f")), job) for job in found]
    return [
        CompletionItem(text, help=printable(f"{job.get('name') or ''} {job['state']}".strip()))
        for text, job in texts
        if text.startswith(incomplete)
    ]


def complete_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return hosts and sets of targets that complete the last one in a list."""
    from fluxsched.core.hostlist import Hostlist

    done, comma, last = incomplete.rpartition(",")
    names: list[str] = []
    answer = _ask(ctx, "resource.status")
    known = answer.get("R", {}).get("execution", {})
    for text in known.get("nodelist", ()):
        names.extend(Hostlist.parse(text).unique())
    names += ["all"] if known else []
    names += [f"property:{name}" for name in sorted(known.get("properties", ()))]
    names += [f"group:{name}" for name in answer.get("groups", ())]
    if last.startswith("queue:"):
        names += [f"queue:{name}" for name in _ask(ctx, "job-manager.queue-list").get("queues", ())]
    return [CompletionItem(f"{done}{comma}{item.value}") for item in _fitting(dict.fromkeys(names), last)]


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return names of policies; a path is completed as that of a file."""
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    from fluxsched.config.policies import known_policies

    return _fitting(known_policies(), incomplete)


complete_queues = _of("job-manager.queue-list", lambda answer: answer.get("queues", ()))
complete_groups = _of("resource.groups", lambda answer: [each["name"] for each in answer.get("groups", ())])
complete_modules = _of("module.list", lambda answer: [each["name"] for each in answer.get("mods", ())])
complete_banks = _of("config.get", lambda answer: answer.get("fair", {}).get("banks", ()))
complete_properties = _of(
    "resource.status", lambda answer: sorted(answer.get("R", {}).get("execution", {}).get("properties", ()))
)


# ---- options of commands

Function = TypeVar("Function", bound=Callable[..., Any])


class InstanceHandle(Protocol):
    """The methods of `fluxsched.client.blocking.Handle` that commands use."""

    uri: str

    def rpc(
        self, topic: str, payload: dict[str, Any] | None = None, *, timeout_s: float | None = ...
    ) -> dict[str, Any]: ...

    def stream(
        self,
        topic: str,
        payload: dict[str, Any] | None = None,
        *,
        meanwhile: Iterable[float] = (),
        beside: ReadableFile | None = None,
    ) -> Iterator[dict[str, Any]]: ...

    def post(self, topic: str, payload: dict[str, Any], answered: Callable[[Any], None]) -> None: ...

    def submit_many(self, jobspecs: list[dict[str, Any]], urgency: int = 16) -> list[int]: ...

    def submit_each(self, jobspecs: list[dict[str, Any]], urgency: int = 16) -> list[int | RPCError]: ...

    def wait(self, jobid: int, *, follow: bool = ...) -> dict[str, Any]: ...

    def rpc_each(
        self, topic: str, payloads: Iterable[dict[str, Any]], *, window: int = ...
    ) -> Iterator[dict[str, Any] | RPCError]: ...

    def subscribe(
        self, topic: str, payload: dict[str, Any] | None, told: Callable[[dict[str, Any] | RPCError | None], None]
    ) -> Callable[[], None]: ...

    def reconnect(self, began: Callable[[], None] = ...) -> None: ...

    def listen(self, timeout_s: float | None, beside: ReadableFile | None = None) -> bool: ...


def connect(uri: str | None, *, may_guess: bool = False) -> AbstractContextManager[InstanceHandle]:
    """Return a handle to the instance: at `uri`, else where FLUXSCHED_URI or the run directory says.

    Of several instances the newest is used only if `may_guess`, for commands that change nothing: else Refused.
    """
    opener = click.get_current_context().obj
    if opener is None:
        from fluxsched.client.blocking import connect_sync

        return connect_sync(uri, only=not may_guess, reconnect_s=0.0)  # `come_back` also says so
    handle: AbstractContextManager[InstanceHandle] = opener(uri)
    return handle


def come_back(handle: InstanceHandle, fault: FluxschedError, remedy: str) -> None:
    """Connect again to an instance that went away, and say so. Raises Disconnected with the `remedy` if it stays so."""
    try:
        handle.reconnect(lambda: warn(f"{fault}: connecting again when it is back"))
    except Disconnected:
        raise Disconnected(f"{fault}; {remedy}", fault.errnum) from None


uri_option = click.option(
    "--uri", metavar="URI", help="The instance to use. [default: FLUXSCHED_URI, else your only one]"
)
_viewed_option = click.option(
    "--uri", metavar="URI", help="The instance to use. [default: FLUXSCHED_URI, else your newest]"
)
include_option = click.option(
    "-i", "--include", metavar="TARGETS", shell_complete=complete_targets, help="Only these targets."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the complete response as JSON.")


def connected(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--uri`; the handler gets an open handle as its first argument. Of several instances none is guessed."""

    @wraps(handler)
    def run(*, uri: str | None, **arguments: Any) -> Any:
        with connect(uri) as handle:
            return handler(handle, **arguments)

    return uri_option(run)


def viewing(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that changes nothing its handle: of several instances it uses the newest."""

    @wraps(handler)
    def run(*, uri: str | None, **arguments: Any) -> Any:
        with connect(uri, may_guess=True) as handle:
            return handler(handle, **arguments)

    return _viewed_option(run)


def resolved(handle: InstanceHandle, targets: str) -> Idset:
    """Return the ranks that TARGETS names, as the instance knows them. Raises RPCError naming all that it does not."""
    from fluxsched.core.idset import Idset

    return Idset.parse(handle.rpc("resource.targets", {"targets": targets})["targets"])


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask, even on a terminal.")


def confirm(question: str, refused: str) -> None:
    """Ask a person on a terminal. Raises Refused, with what was not done, when the answer is no."""
    if interactive() and not click.confirm(question, err=True):
        raise Refused(refused, errno.ECANCELED)


class TableSpec(NamedTuple):
    """Formats of one command's table: named, one of them `default`, over its fields."""

    formats: Mapping[str, str]
    fields: Mapping[str, Field]


class Output(NamedTuple):
    """Form of the output by `--json`, `-o` and `-n`."""

    as_json: bool
    layout: Format
    fields: Mapping[str, Field]
    header: bool

    def show(self, answer: object, rows: Callable[[frozenset[str]], Sequence[Any]]) -> None:
        """Print the answer itself as JSON, or the rows that `rows(names of fields)` makes of it."""
        if self.as_json:
            print_json(answer)
        else:
            print_table(rows(self.layout.names), self.layout, self.fields, header=self.header)


def table_options(table: TableSpec) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--json`, `-o` and `-n`; the handler gets them as `output`."""
    names = ", ".join(table.formats)

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> Format:
        try:
            return parse_format(table.formats.get(value, value), table.fields)
        except InvalidValue as error:
            raise click.BadParameter(str(error), ctx, param) from None

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        def run(*args: Any, as_json: bool, layout: Format, no_header: bool, **arguments: Any) -> Any:
            return handler(*args, output=Output(as_json, layout, table.fields, not no_header), **arguments)

        for option in (
            click.option("-n", "--no-header", is_flag=True, help="Omit the header line."),
            click.option(
                "-o", "--format", "layout", metavar="FORMAT", default="default", callback=parse,
                help=f"Columns, as '{{field:>8}} {{field}}', or one of: {names}.",
            ),
            json_option,
        ):  # fmt: skip
            run = option(run)
        return run

    return decorate


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # older click has no type arguments


UNKNOWN_NAMED_MAX = 16
"""Wrong words that one error repeats."""


class WordList(_ParamType):
    """A comma separated list out of a fixed set; an error names all words that are not in it."""

    name = "words"

    def __init__(self, allowed: Sequence[str], others: Mapping[str, str] = MappingProxyType({})) -> None:
        """`others`: words for words of the set that are understood as well."""
        self.allowed = tuple(allowed)
        self.others = others

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Convert the list to words in lower case."""
        if isinstance(value, tuple):
            return value
        typed = (word.strip().lower() for word in value.split(",") if word.strip())
        words = tuple(self.others.get(word, word) for word in typed)
        unknown = [word for word in words if word not in self.allowed]
        if unknown:
            self.fail(not_among(list(dict.fromkeys(unknown[:UNKNOWN_NAMED_MAX])), self.allowed), param, ctx)
        if not words:
            self.fail(f"name one or more of {', '.join(self.allowed)}", param, ctx)
        return words


class StateDirectory(click.Path):
    """A directory; an empty text, as of a variable that is not set, is not taken for the present one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or a usage error."""
        if value == "":
            self.fail("the name is empty: is a variable unset?", param, ctx)
        return super().convert(value, param, ctx)


class Converted(_ParamType):
    """A text that one of core's parsers reads; its InvalidValue is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a value with the parser."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except (InvalidValue, ValueError) as error:
            return self.fail(str(error), param, ctx)


def _duration(text: str) -> float:
    from fluxsched.core.quantities import parse_duration

    return parse_duration(text)


def _time_limit(text: str) -> float:
    from fluxsched.core.quantities import parse_time_limit

    return parse_time_limit(text)


def parse_jobid(text: str) -> int:
    """Return the id of a job that an instance can have. Raises InvalidValue."""
    from fluxsched.core import jobid

    id = jobid.parse_jobid(text)
    if id > SENT_ID_MAX:
        raise LimitExceeded(f"no such job {text!r}: job ids are below 2**63")
    return id


SENT_ID_MAX = (1 << 63) - 1
"""The highest id that is sent: an instance gives lower ones for five hundred years, whatever RFC 19 has room for."""


class Whole(click.IntRange):
    """A whole number within bounds, called so in errors."""

    name = "whole number"


def _small(text: str) -> int:
    """Return a number of one or two digits, -1 for every other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 2 else -1


URGENCIES = {"hold": 0, "default": 16, "expedite": 31}


def parse_urgency(text: str) -> int:
    """0..31, or a word for one. Raises InvalidValue."""
    value = URGENCIES.get(text.lower(), _small(text))
    if not 0 <= value <= 31:
        raise InvalidValue(f"urgency {text!r} is not 0..31, {', '.join(URGENCIES)}")
    return value


def _signal(text: str) -> int:
    import signal

    name = text.upper().removeprefix("SIG")
    known = {each.name.removeprefix("SIG"): int(each) for each in signal.Signals}
    if name in known:
        return known[name]
    if not 1 <= _small(text) <= signal.NSIG - 1:
        raise InvalidValue(f"{text!r} is not a signal: give a name such as TERM or a number 1..{signal.NSIG - 1}")
    return _small(text)


_TYPED = "fluxsched.typed"


def note_typed(ctx: click.Context, jobid: int, text: str) -> None:
    """Remember how a job id was typed."""
    ctx.meta.setdefault(_TYPED, {})[jobid] = text


def typed(jobid: int) -> str:
    """Return a job id as it was typed, so that a mistake can be found; else in its usual form."""
    noted: dict[int, str] = click.get_current_context().meta.get(_TYPED, {})
    return noted.get(jobid) or jobid_text(jobid)


class JobIdType(Converted):
    """One job id; `typed` returns its text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a job id to its number."""
        jobid = super().convert(value, param, ctx)
        if ctx is not None and isinstance(value, str):
            note_typed(ctx, jobid, value)
        return jobid

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return completions from the jobs of the instance."""
        return complete_jobids(ctx, param, incomplete)


STATE_DIRECTORY = StateDirectory()
FSD = Converted("fsd", _duration)
LIMIT_FSD = Converted("time limit", _time_limit)
JOBID = JobIdType("jobid", parse_jobid)
URGENCY = Converted("urgency", parse_urgency)
SIGNAL = Converted("signal", _signal)

jobid_argument = click.argument("jobid", metavar="JOBID", type=JOBID)


def jobids_argument(*, only_read: bool = False) -> Callable[[Function], Function]:
    """Return the argument `JOBID...`; an error names every text that is not a job id.

    A job that is named twice, perhaps in two forms, is there once, unless the ids are `only_read`: then all that
    RFC 19 allows are taken as they come.
    """

    def parse(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
        from fluxsched.core import jobid

        ids, faults = [], []
        for text in texts:
            try:
                ids.append(jobid.parse_jobid(text) if only_read else parse_jobid(text))
                note_typed(ctx, ids[-1], text)
            except InvalidValue as error:
                faults.append(str(error))
        if faults:
            raise click.BadParameter("; ".join(faults), ctx, param)
        return tuple(ids if only_read else dict.fromkeys(ids))

    return click.argument(
        "jobids", metavar="JOBID...", nargs=-1, required=True, callback=parse, shell_complete=complete_jobids
    )


# ---- values of options

FILE_BYTES_MAX = 1 << 20
"""Of rules, of one attribute, of the configuration of a nested instance: naming a device by mistake must not hang."""


def read_text(name: str, option: str) -> str:
    """Return the text of the file `name`; `~` is the home directory. Raises InvalidValue, OSError naming the file."""
    try:
        with Path(name).expanduser().open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidValue(f"{option}: the file '{printable(name)}' is not UTF-8 text") from None
    except (ValueError, RuntimeError) as fault:
        raise InvalidValue(f"{option}: cannot open the file '{printable(name)}': {fault}") from None
    if len(data) > FILE_BYTES_MAX:
        raise LimitExceeded(f"{option}: the file '{printable(name)}' is larger than {FILE_BYTES_MAX} bytes")
    return text


def parse_value(text: str) -> Any:
    """Return the value of a JSON text, and any other text as it is. Raises InvalidValue."""
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidValue(f"{text[:40]}... is nested too deeply to be read") from None
    except ValueError:
        return text


DAYS_BACK = {"today": 0, "yesterday": 1}


def parse_since(text: str) -> float:
    """Seconds since the epoch, of a duration before now (`-6h`, `6h`), a date and time, `today`, `yesterday` or `now`;
    not in the future.
    """
    from fluxsched.core.quantities import parse_duration

    now_s = SystemClock.wall_s()
    if text == "now":
        return now_s
    if text in DAYS_BACK:
        day = datetime.fromtimestamp(now_s).date() - timedelta(days=DAYS_BACK[text])
        return datetime.combine(day, time()).timestamp()
    try:
        since_s = datetime.fromisoformat(text).timestamp() if text[:4].isdecimal() and "-" in text else None
        since_s = now_s - parse_duration(text.removeprefix("-")) if since_s is None else since_s
    except (ValueError, OverflowError):
        raise InvalidValue(
            f"{text!r} is neither a duration, such as -6h, nor today, yesterday or a date, such as 2030-01-31T12:00"
        ) from None
    if not 0.0 <= since_s <= now_s:
        raise InvalidValue(f"{text!r} is not between 1970 and now")
    return since_s


WHEN = Converted("when", parse_since)
