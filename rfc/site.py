"""What the site has besides the pages of the repository: their layout, every command's help, and the public names.

`make docs` runs it before mkdocs. The site is laid out as the repository is, so a link that holds there holds here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import click

from fluxsched.cli.main import main
from fluxsched.cli.manual import subcommands

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "*.md", "LICENSE", "benchmarks/README.md", "examples/*", "rfc/*", "rfc/guides/*", "rfc/pictures/*", "rfc/schemas/*",
)  # fmt: skip
MODULES = ("fluxsched", "fluxsched.policy", "fluxsched.plugin", "fluxsched.sim")


def sources() -> Iterator[Path]:
    """Yield the files of the repository that the site has, by their paths in it."""
    for pattern in PAGES:
        yield from (path.relative_to(ROOT) for path in sorted(ROOT.glob(pattern)) if path.is_file())


def options_page() -> str:
    """Return the help of every command, as one page to search in."""
    lines = ["# Every option", "", "What `--help` prints, and `man fluxsched-COMMAND`; generated from the commands."]

    def add(command: click.Command, ctx: click.Context) -> None:
        lines.extend(["", f"## {ctx.command_path}", "", "```text", command.get_help(ctx), "```"])
        for name, one in subcommands(command) if isinstance(command, click.Group) else []:
            add(one, click.Context(one, ctx, name, max_content_width=100))

    add(main, click.Context(main, info_name="fluxsched", **main.context_settings))
    return "\n".join(lines) + "\n"


def api_page(text: str) -> str:
    """Return the page of public names with their reference: of classes and functions by mkdocstrings."""
    for module in MODULES:
        names = {name: getattr(import_module(module), name) for name in import_module(module).__all__}
        defined = {name: value for name, value in names.items() if _is_defined_as(name, value)}
        made = [
            f"::: {value.__module__}.{value.__qualname__}\n"
            f"    options: {{heading: {module}.{name}, toc_label: {name}}}\n"
            for name, value in defined.items()
        ]
        values = [f"- `{name}` is `{value!r}`" for name, value in names.items() if name not in defined]
        text = text.replace(f"<!-- reference: {module} -->\n", "\n".join(["", *values, "", *made]) + "\n")
    return text


def _is_defined_as(name: str, value: object) -> bool:
    """Return whether a public name is that of a class or function of ours, and no other name of it, or a constant."""
    is_ours = isinstance(value, type | FunctionType) and value.__module__.startswith("fluxsched")
    return is_ours and value.__name__ == name


def with_blank_lines(text: str) -> str:
    """Give lists the blank line before them that Python's Markdown wants and GitHub does not."""
    return re.sub(r"(?m)^(?![-*|>#]|\s|\d+\.)(.+)\n(?=- |1\. )", r"\1\n\n", text)


def lay_out(pages: Path, with_pictures: Callable[[str], str]) -> None:
    """Write all that mkdocs makes pages of into a folder, in place of what was there; diagrams become pictures."""
    shutil.rmtree(pages, ignore_errors=True)
    for path in sources():
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, pages / path)
    for page in pages.rglob("*.md"):
        page.write_text(with_pictures(with_blank_lines(page.read_text())))
    api = pages / "rfc/api.md"
    api.write_text(api_page(api.read_text()))
    (pages / "rfc/options.md").write_text(options_page())


if __name__ == "__main__":
    from drawing import with_pictures  # beside this script

    lay_out(ROOT / "build/pages", with_pictures)
