"""A view, or the study of a simulation (`fluxsched sim --html`), as one file that needs no server and no network.

Modules, styles and data are in the page itself. A study compares several policies on one trace: its figures are a table
that is read without script; everything else is drawn by `static/study.js`.

Law: it carries a content security policy that allows exactly the script and the styles in it, by their hashes; data is
JSON in a script element of its own, in which no `<` stands. A module is `import { a, b } from "./x.js";` at the
beginning of lines and `export function|class|const`, no more, so that no bundler is needed: each becomes a function
that returns what it exports.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final

from fluxsched.views.words import duration_text

STATIC: Final = Path(__file__).parent / "static"

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def standalone(title: str, body: str, module: str, styles: tuple[str, ...], data: dict[str, Any]) -> str:
    """Return a page whose `body` (markup) is there without script, and is then taken over by `show(root, source)` of a
    module of `static/`; `root` is its `main`, and `source` gives `data` as the whole, and to whoever fetches more.
    """
    script = f"{modules(module)}\n{_START}"
    style = "\n".join([(STATIC / name).read_text("utf-8") for name in styles])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        '<div id="announce" class="unseen" aria-live="polite"></div>\n'
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


_START: Final = """
const data = JSON.parse(document.getElementById("data").textContent);
shown.show(document.querySelector("main"), {
  whole: (use) => use(data), fetch: async () => data, change() {}, filter() {}, params: {},
});
})();
"""


def embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element that it is in."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def modules(name: str) -> str:
    """Return a module of `static/`, called `shown`, with all that it needs before it, as one plain script that is not
    closed yet. Raises ValueError for a module that is written otherwise than the law above says, or needs itself.
    """
    parts: dict[str, str] = {}
    _inline(name, parts, ())
    return "(() => {\n'use strict';\n" + "\n".join(parts.values()) + f"\nconst shown = {_variable(name)};"


def _inline(name: str, parts: dict[str, str], above: tuple[str, ...]) -> None:
    """Add a module after those that it imports, once."""
    if name in parts:
        return
    if name in above:
        raise ValueError(f"module {name} imports itself: {' -> '.join([*above, name])}")
    text = (STATIC / name).read_text("utf-8")
    for wanted, needed in _IMPORT.findall(text):
        other = _beside(name, needed)
        _inline(other, parts, (*above, name))
        exported = set(_exports((STATIC / other).read_text("utf-8")))
        if missing := {each.split()[0] for each in wanted.split(",") if each.strip()} - exported:
            raise ValueError(f"module {name}: {other} does not export {', '.join(sorted(missing))}")
    names = _exports(text)
    text = _EXPORT.sub("", _IMPORT.sub(lambda found: _taken(name, found), text))
    if odd := _OTHER.search(text):
        raise ValueError(f"module {name}: {odd.group()!r}: write imports and exports in the plain form only")
    parts[name] = f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"


def _exports(text: str) -> list[str]:
    return [found.group(1) for found in _EXPORT.finditer(text)]


def _taken(name: str, found: re.Match[str]) -> str:
    """`import { a as b }` as a `const` of what the other module returned."""
    wanted = re.sub(r"(\w+) as (\w+)", r"\1: \2", found.group(1))
    return f"const {{{wanted}}} = {_variable(_beside(name, found.group(2)))};"


def _beside(name: str, needed: str) -> str:
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / needed).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


# ---- studies as single files


def study_page(study: dict[str, Any], made: str = "") -> str:
    """Return the whole page, of what `fluxsched.sim.report` says of a study; `made` says by what it was made."""
    titles = [policy["title"] for policy in study["policies"]]
    notes = [*study["heading"][1:], *study["refusals"]]
    body = (
        '<main class="study">\n<header><div>\n'
        f'<h1>{escape(study["trace"])}</h1>\n<p class="note">{escape(study["heading"][0])}</p>\n'
        f'<p class="note mono wraps">{escape(made)}</p>\n</div></header>\n'
        f"{_figures(titles, study['figures'])}\n"
        f"{''.join([f'<p class=note>{escape(note)}</p>' for note in notes])}"
        "<noscript><p>The charts need JavaScript; the table does not.</p></noscript>\n</main>"
    )
    return standalone(study["trace"], body, "study.js", ("style.css", "views.css"), study)


def _figures(titles: Sequence[str], figures: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all figures, in groups; the best of a line is marked, and the change against the first."""
    head = "".join([f'<th scope="col">{escape(title)}</th>' for title in titles])
    groups: dict[str, list[str]] = {}
    for figure in figures:
        groups.setdefault(figure["group"], []).append(_figure_row(figure))
    bodies = "".join(
        [
            f'<tbody><tr><th scope="rowgroup" colspan="{len(titles) + 1}">{escape(name)}</th></tr>\n'
            + "\n".join(rows)
            + "\n</tbody>"
            for name, rows in groups.items()
        ]
    )
    note = (
        '<p class="note">\u2193: less is better, \u2191: more. The best is bold; in brackets the change against the '
        "first policy. Fairness is Jain's index: 1 if all are slowed down equally.</p>"
        if len(titles) > 1
        else ""
    )
    return (
        '<div class="card scrolls"><table class="rows" id="figures"><caption class="unseen">Figures by policy</caption>'
        f'<thead><tr><th scope="col">Figure</th>{head}</tr></thead>\n{bodies}</table></div>{note}'
    )


_DIRECTIONS: Final = {-1: " \u2193", 0: "", 1: " \u2191"}
_SECONDS: Final = " [s]"
_CHANGE_MIN_PERCENT: Final = 0.5
"""Smaller changes against the first policy are not worth a reader's time."""


def _figure_row(figure: Mapping[str, Any]) -> str:
    title, better, numbers = figure["title"], figure["better"], figure["numbers"]
    known = [number for number in numbers if number is not None]
    is_told = better and len(known) == len(numbers) > 1 and min(known) < max(known)
    best = max(known, key=lambda one: one * better) if is_told else None
    is_time = title.endswith(_SECONDS)
    cells = []
    for text, number in zip(figure["texts"], numbers, strict=True):
        shown, exact = escape(text), ""
        if is_time and number is not None:
            shown, exact = duration_text(number), f' title="{escape(text)} s"'
        if number is not None and number == best:
            shown = f'<strong class="best">{shown}</strong>'
        cells.append(f"<td{exact}>{shown}{_change(number, numbers[0]) if better else ''}</td>")
    name = title.removesuffix(_SECONDS) if len(numbers) < 2 else title.removesuffix(_SECONDS) + _DIRECTIONS[better]
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>'


def _change(number: float | None, first: float | None) -> str:
    if number is None or not first:
        return ""
    percent = 100 * (number / first - 1)
    return f" <small>({percent:+,.0f} %)</small>" if abs(percent) >= _CHANGE_MIN_PERCENT else ""
