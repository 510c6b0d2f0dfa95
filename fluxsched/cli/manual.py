"""Manual pages and shell completion, made from the commands themselves when a wheel is built (`hatch_build.py`).

`python -m fluxsched.cli.manual DIR` writes them below DIR for an installation from sources.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from fluxsched import __version__
from fluxsched.cli.base import LazyGroup
from fluxsched.cli.main import main

_SHELLS: dict[str, type[ShellComplete]] = {
    "share/bash-completion/completions/fluxsched": BashComplete,
    "share/zsh/site-functions/_fluxsched": ZshComplete,
    "share/fish/vendor_completions.d/fluxsched.fish": FishComplete,
}
"""Where the packages of each shell look below a prefix."""


def data_files() -> Iterator[tuple[str, str]]:
    """Yield path and text of each file that belongs below an installation's prefix."""
    yield "share/man/man1/fluxsched.1", _page(main, ("fluxsched",))
    for name, command in subcommands(main):
        yield f"share/man/man1/fluxsched-{name}.1", _page(command, ("fluxsched", name))
    for path, shell in _SHELLS.items():
        # not `source()`, which for bash asks the bash of the machine that builds for its version
        made = shell(main, {}, "fluxsched", "_FLUXSCHED_COMPLETE")
        yield path, made.source_template % made.source_vars()


def subcommands(group: click.Group) -> list[tuple[str, click.Command]]:
    """Return the commands of a group in its order, by name; each is imported."""
    return [
        (name, group.load(name) if isinstance(group, LazyGroup) else group.commands[name]) for name in group.commands
    ]


def _page(command: click.Command, words: tuple[str, ...]) -> str:
    """Return the manual page of a command, with the commands of a group; the program's own names the other pages."""
    title, short = "-".join(words), command.get_short_help_str(200).rstrip(".")
    lines = [f'.TH {_roff(title.upper())} 1 "" "fluxsched {__version__}" "User Commands"']
    lines += [".SH NAME", f"{_roff(title)} \\- {_roff(short)}", ".SH SYNOPSIS", *_body(command, words, "SH")]
    if command is main:
        lines += [".SH COMMANDS"]
        for name, one in subcommands(main):
            lines += [".TP", f"\\fBfluxsched\\-{_roff(name)}\\fR(1)", _roff(one.get_short_help_str(200))]
    elif isinstance(command, click.Group):
        for name, one in subcommands(command):
            inner = (*words, name)
            lines += [f".SH {_roff(' '.join(inner[1:]).upper())}", *_body(one, inner, "SS")]
            if isinstance(one, click.Group):
                for last, two in subcommands(one):
                    lines += [f".SS {_roff(' '.join((*inner[1:], last)))}", *_body(two, (*inner, last), "SS")]
    if command is not main:
        lines += [".SH SEE ALSO", "\\fBfluxsched\\fR(1)"]
    return "\n".join(lines) + "\n"


def _body(command: click.Command, words: tuple[str, ...], heading: str) -> Iterator[str]:
    """Yield usage, text and options of a command."""
    ctx = click.Context(command, info_name=words[-1], help_option_names=["-h", "--help"])
    yield f"\\fB{_roff(' '.join(words))}\\fR {_roff(' '.join(command.collect_usage_pieces(ctx)))}"
    if heading == "SH":
        yield ".SH DESCRIPTION"
    yield from _text(command.help or "")
    yield from _text(command.epilog or "")
    options = [option for option in command.get_params(ctx) if heading == "SH" or option.name != "help"]
    records = [record for option in options if (record := option.get_help_record(ctx))]
    if records:
        yield f".{heading} {'OPTIONS' if heading == 'SH' else 'Options'}"
    for names, text in records:
        yield from (".TP", f"\\fB{_roff(names)}\\fR", _roff(text))


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs; one that begins with click's mark stays as it is."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [_roff(line.strip()) for line in paragraph.removeprefix("\b\n").splitlines()]
        yield from (".PP", ".nf", *lines, ".fi") if paragraph.startswith("\b") else (".PP", *lines)


def _roff(text: str) -> str:
    """Return a text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("ƒ", "f")
    return re.sub(r"^([.'])", r"\\&\1", escaped)


def write(folder: Path) -> dict[str, Path]:
    """Write all files below a folder; each file by its path below an installation's prefix."""
    made = {}
    for path, text in data_files():
        made[path] = folder / path
        made[path].parent.mkdir(parents=True, exist_ok=True)
        made[path].write_text(text)
    return made


if __name__ == "__main__":
    write(Path(sys.argv[1]))
