"""Batch scripts and what makes them jobs: submission directives, nested instances, files that a jobspec carries.

Directives (RFC 36) are options that a script carries: lines that begin with the sentinel, some non-word characters and
`flux:` or `FLUX:`; the first one decides which characters. What follows is words with the quotes of a shell and
comments, and must be options. A directive after the script proper has begun is an error, for it would be ignored. Every
error names its line.

Laws: a job that is an instance itself, from `batch` or `alloc`, is known by its command, `flux broker [OPTIONS]
[COMMAND]`, as Flux writes it: no attribute says it twice, and what Flux's own commands submit is the same. What it is
given are slots; it has one task, the instance. An archive of files (`attributes.system.files`, RFC 37) is checked whole
before any of it is written, and its paths lead nowhere but below the directory that it is written to. Content that is
only referred to (`blobvec`) is refused: an instance of ours has no content store.
"""

from __future__ import annotations

import binascii
import json
import re
import stat
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fluxsched.core.text import kind_of, shown, with_path
from fluxsched.errors import InvalidValue, LimitExceeded

FILES_MAX = 1024
"""Files of one job: a script, a configuration and what a site adds are some ten."""

BYTES_MAX = 1 << 22
"""Content of all files of one job: it is part of the jobspec, which stays in memory until the job ends."""

PATH_CHARS_MAX = 1024
"""Of one path: with the directory that it is written to it must stay below the kernel's 4096."""

_WHERE: Final = "attributes.system.files"


class ArchivedFile(NamedTuple):
    """A regular file (`data`), a directory or a symbolic link (`data` is its target); `mode` as in stat(2)."""

    path: str
    mode: int
    data: bytes


def parse_archive(obj: object) -> tuple[ArchivedFile, ...]:
    """Return the files of an archive, empty if there is none.

    Raises InvalidValue naming the file that is wrong, LimitExceeded above a named limit.
    """
    if obj is None:
        return ()
    if not isinstance(obj, dict | list | tuple):
        raise InvalidValue(f"{_WHERE} must be an object or a list (RFC 37), not {kind_of(obj)}")
    if len(obj) > FILES_MAX:
        raise LimitExceeded(f"{_WHERE} has {len(obj)} files: the limit is {FILES_MAX}")
    files = tuple(_file(path, one) for path, one in _entries(obj))
    size = sum(len(one.data) for one in files)
    if size > BYTES_MAX:
        raise LimitExceeded(f"{_WHERE} has {size} bytes: the limit is {BYTES_MAX}, put large files where the job runs")
    _check_tree(files)
    return files


def _check_tree(files: tuple[ArchivedFile, ...]) -> None:
    """Only directories have anything below them: what is behind a symbolic link may be anywhere."""
    leaves = {one.path for one in files if not stat.S_ISDIR(one.mode)}
    for one in files:
        above, slash, _ = one.path.rpartition("/")
        while slash:
            if above in leaves:
                raise InvalidValue(f"{_WHERE}.{one.path[:80]} is below {shown(above)}, which is not a directory")
            above, slash, _ = above.rpartition("/")


def script_file(script: str) -> dict[str, Any]:
    """Return a program as an archive has it."""
    return {
        "mode": stat.S_IFREG | 0o700,
        "size": len(script.encode()),
        "encoding": "utf-8",
        "data": script,
    }


def _entries(obj: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[object, object]]:
    if isinstance(obj, dict):
        yield from obj.items()
        return
    for one in obj:
        yield (one.get("path") if isinstance(one, dict) else None), one


def _file(path: object, obj: object) -> ArchivedFile:
    if type(path) is not str or len(path) > PATH_CHARS_MAX or "\0" in path:
        raise InvalidValue(f"{_WHERE}: path {shown(path)} is not a text of 1-{PATH_CHARS_MAX} characters without NUL")
    if not {".", "..", ""}.isdisjoint(path.split("/")):
        raise InvalidValue(f"{_WHERE}: path {shown(path)} must be relative, without . and ..")
    where = f"{_WHERE}.{path[:80]}"
    if not isinstance(obj, dict):
        raise InvalidValue(f"{where} must be an object (RFC 37), not {kind_of(obj)}")
    mode = obj.get("mode")
    if type(mode) is not int or not 0 <= mode <= 0o177777:
        raise InvalidValue(f"{where}.mode must be an integer such as stat(2) has it, not {shown(mode)}")
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        return ArchivedFile(path, mode, b"")
    if kind == stat.S_IFLNK:
        return ArchivedFile(path, mode, _text(obj.get("data"), where))
    if kind != stat.S_IFREG:
        raise InvalidValue(f"{where}.mode: {oct(mode)} is not a file, directory or symbolic link")
    return ArchivedFile(path, mode, _content(obj, where))


def _content(obj: Mapping[str, Any], where: str) -> bytes:
    encoding, data = obj.get("encoding"), obj.get("data")
    if encoding is None:
        return b"" if "data" not in obj else json.dumps(data).encode()
    if encoding == "utf-8":
        return _text(data, where)
    if encoding != "base64":
        raise InvalidValue(f"{where}.encoding: {shown(encoding)} is not utf-8 or base64")
    try:
        return b64decode(_text(data, where), validate=True)
    except binascii.Error as fault:
        raise InvalidValue(f"{where}.data is not base64: {fault}") from None


def _text(data: object, where: str) -> bytes:
    if type(data) is not str:
        raise InvalidValue(f"{where}.data must be text, not {kind_of(data)}")
    try:
        return data.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{where}.data has a lone surrogate, which is not text: encode it as base64") from None


# ---- jobs that are an instance themselves

SCRIPT: Final = "{{tmpdir}}/script"
"""Path of the script of a batch job, below the job's own directory."""
CONFIG: Final = "conf.json"
"""The configuration of the nested instance, as Flux names the file."""
ADDRESS_KEY: Final = "fluxsched_uri"
"""The key of the memo in which a nested instance says, at its job, where it is; `uri` is as Flux's commands want it.

Flux wants identifiers as keys.
"""

_BROKER: Final = ("flux", "broker")
_WITH_VALUE = {"-S": "setattr", "--setattr": "setattr", "-c": "config", "--config-path": "config", "--conf": "conf"}
_STAYS: Final = "broker.rc2_none"


class Nested(NamedTuple):
    """Program of a nested instance: `command` (empty: a shell), or none if it `stays` until it is stopped.

    `config` is the path of its configuration; it may have `{{tmpdir}}` in it, as the command may.
    """

    command: tuple[str, ...]
    stays: bool = False
    config: str | None = None


def is_nested(command: Sequence[str]) -> bool:
    """Return whether a job with this command is an instance."""
    return len(command) > 1 and command[1] == _BROKER[1] and command[0].rpartition("/")[2] == _BROKER[0]


def parse_nested(command: Sequence[str]) -> Nested:
    """Return the program that the instance is to run. Raise InvalidValue for an option that no broker has."""
    stays, config = False, None
    words = list(command[len(_BROKER) :])
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith(("-v", "--verbose")):
            continue
        option, value = _split(word, words)
        if option == "setattr" and value.partition("=")[0] == _STAYS:
            stays = value.partition("=")[2] not in ("", "0")
        elif option == "config":
            config = value
        elif option == "conf":
            raise InvalidValue("flux broker --conf is not read here: give the configuration to batch with its --conf")
    return Nested(tuple(words), stays, config)


def nested_jobspec(
    jobspec: Mapping[str, Any], nested: Nested, script: str | None, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`jobspec`, whose slots are right, as that of a nested instance; with its script and its configuration."""
    options = ["-Sbroker.rc2_none=1"] if nested.stays else []
    files: dict[str, Any] = {}
    if script is not None:
        files["script"] = script_file(script)
    if config is not None:
        options.append(f"-c{{{{tmpdir}}}}/{CONFIG}")
        files[CONFIG] = {"mode": 0o100600, "data": dict(config)}
    task = {**jobspec["tasks"][0], "command": [*_BROKER, *options, *nested.command]}
    made = {**jobspec, "tasks": [task]}
    for key, value in _SHELL_OPTIONS.items():
        made = with_path(made, f"attributes.system.shell.options.{key}", value)
    return with_path(made, "attributes.system.files", files) if files else made


_SHELL_OPTIONS: Final[Mapping[str, Any]] = {"per-resource": {"type": "node"}, "mpi": "none", "exit-timeout": "none"}
"""One broker a node, as Flux's batch asks for it: so that a jobspec of ours is right under Flux, too."""


def _split(word: str, rest: list[str]) -> tuple[str, str]:
    """Return an option that has a value, and that, from the word itself or the next one."""
    name, equals, value = word.partition("=")
    if not word.startswith("--"):
        name, equals, value = word[:2], word[2:], word[2:]
    if name not in _WITH_VALUE:
        raise InvalidValue(f"flux broker has no option {name}: it has {', '.join(_WITH_VALUE)} and -v")
    if not equals and not rest:
        raise InvalidValue(f"flux broker {name} needs a value")
    return _WITH_VALUE[name], value if equals else rest.pop(0)


# ---- submission directives

SCRIPT_BYTES_MAX = 1 << 20
"""A batch script is stored with its job, whose jobspec lives in memory and on disk: 1 MiB of shell is a mistake."""

_LINE: Final = re.compile(r"([^\w]*)((?:flux|FLUX):)(.*)")
_PART: Final = re.compile(
    r"(?P<space>\s+)|(?P<comment>#.*)"
    r"|(?P<triple>\"\"\"(?P<in_double>.*?)\"\"\"|'''(?P<in_single>.*?)''')"
    r"|(?P<open>\"\"\"|''')"
    r"|(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')"
    r"|\\(?P<escaped>.)|(?P<plain>[^\s#\"'\\();<>|&]+)|(?P<stray>.)"
)
_ESCAPE: Final = re.compile(r"\\([\\\"'])")


class Directive(NamedTuple):
    """The options of one directive, and the line of the script that it begins on (counted from 1)."""

    line: int
    words: tuple[str, ...]


class _Literal:
    """A triple quoted string over several lines, from its opening line on."""

    def __init__(self, line: int, begin: str, quotes: str, words: list[str], joined: bool) -> None:
        self.line = line
        self.begin = begin.strip()
        self.indent = begin[: -len(begin.lstrip())]
        self.quotes = quotes
        self.words = words
        self.joined = joined
        self.lines: list[str] = []

    def take(self, text: str) -> bool:
        """Take one line; whether it closes the literal."""
        text = text.removeprefix(self.indent)
        closed = text.rstrip().endswith(self.quotes)
        self.lines.append(text.rstrip().removesuffix(self.quotes) if closed else text)
        return closed

    def finish(self) -> Directive:
        text = "\n".join(self.lines)
        if self.joined:
            self.words[-1] += text
        else:
            self.words.append(text)
        return _checked(self.line, self.words)


def parse_directives(script: str) -> list[Directive]:
    """Return the directives of a script, in order; lines whose options are commented out are left away.

    Raises InvalidValue that begins with the line: `line 6: ...`.
    """
    found: list[Directive] = []
    sentinel: tuple[str, str] | None = None
    ended = 0
    literal: _Literal | None = None
    number = 0
    for number, line in enumerate(script.split("\n"), 1):
        match = _LINE.match(line)
        if match is None:
            if literal is not None:
                raise _unterminated(literal, number)
            if sentinel is not None and not ended and line.strip() and not line.startswith(sentinel[0].rstrip()):
                ended = number
            continue
        if ended:
            raise InvalidValue(
                f"line {number}: {match[2]!r} after line {ended}, where the script itself begins: "
                "move all directives before it"
            )
        sentinel = _same(sentinel, (match[1], match[2]), number)
        if literal is None:
            literal = _read(number, match[3], found)
        elif literal.take(match[3]):
            found.append(literal.finish())
            literal = None
    if literal is not None:
        raise _unterminated(literal, number)
    return found


def check_script(script: str, name: str) -> None:
    """Refuse what cannot be a batch script: text without `#!`, or too much of it. `name` is used in the error."""
    size = len(script.encode("utf-8", "surrogateescape"))
    if size > SCRIPT_BYTES_MAX:
        raise LimitExceeded(
            f"{name}: a script of {size} bytes is above the limit of {SCRIPT_BYTES_MAX}: "
            "have a short script start the program that you mean"
        )
    if not script.startswith("#!"):
        raise InvalidValue(f"{name} does not begin with #! (such as #!/bin/sh): name its interpreter, or use --wrap")


def _same(first: tuple[str, str] | None, found: tuple[str, str], number: int) -> tuple[str, str]:
    if first is not None and first != found:
        wanted, given = "".join(first), "".join(found)
        raise InvalidValue(
            f"line {number}: sentinel {given!r} differs from {wanted!r} above: all directives of a script begin alike. "
            f"To leave one out write {wanted} # in front of its options"
        )
    return found


def _read(number: int, text: str, found: list[Directive]) -> _Literal | None:
    """Add the directive of a line, if it has one; the literal that it opens, if it does."""
    words: list[str] = []
    joined = False
    for part in _PART.finditer(text):
        kind = part.lastgroup
        if part["open"]:
            if text[part.end() :].strip():
                raise InvalidValue(f"line {number}: unclosed triple quote: {text.strip()}")
            return _Literal(number, text, part["open"], words, joined)
        if kind == "stray":
            raise InvalidValue(f"line {number}: {_stray(part['stray'])}: {text.strip()}")
        if kind in ("space", "comment"):
            joined = False
            continue
        if not joined:
            words.append("")
            joined = True
        words[-1] += _value(part)
    if words:
        found.append(_checked(number, words))
    return None


def _value(part: re.Match[str]) -> str:
    if part["triple"]:
        return part["in_double"] if part["in_double"] is not None else part["in_single"]
    quoted = part["double"] or part["single"]
    if quoted:
        return _ESCAPE.sub(lambda found: found[1] if found[1] in ("\\", quoted[0]) else found[0], quoted[1:-1])
    return part["escaped"] or part["plain"]


def _stray(character: str) -> str:
    if character in "\"'":
        return f"quote {character} is not closed"
    if character == "\\":
        return "a backslash at its end escapes nothing"
    return f"{character!r} means something to shells: quote it"


def _checked(number: int, words: list[str]) -> Directive:
    if not words[0].startswith("-"):
        raise InvalidValue(f"line {number}: unknown directive {words[0]!r}: it must begin with an option, such as -N4")
    return Directive(number, tuple(words))


def _unterminated(literal: _Literal, number: int) -> InvalidValue:
    return InvalidValue(f"line {number}: triple quote of line {literal.line} is not closed: {literal.begin}")
