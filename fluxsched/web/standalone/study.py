"""The page of a simulation: several policies on one trace, in one file (`fluxsched sim --html`).

Law: the figures are a table that is read without script; everything else is drawn by `static/study.js`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fluxsched.web.standalone.inlining import standalone


def study_page(study: dict[str, Any]) -> str:
    """The whole page, of what `fluxsched.sim.results.drawing` says of a study."""
    titles = [policy["title"] for policy in study["policies"]]
    notes = [*study["heading"][1:], *study["refusals"]]
    body = (
        '<main class="study">\n<header><div>\n'
        f'<h1>{escape(study["trace"])}</h1>\n<p class="note">{escape(study["heading"][0])}</p>\n</div></header>\n'
        f'{_figures(titles, study["figures"])}\n'
        f'{"".join([f"<p class=note>{escape(note)}</p>" for note in notes])}'
        "<noscript><p>The charts need JavaScript; the table does not.</p></noscript>\n</main>"
    )
    return standalone(study["trace"], body, "study.js", ("style.css", "views.css"), study)


def _figures(titles: Sequence[str], figures: Sequence[Sequence[str]]) -> str:
    head = "".join([f'<th scope="col">{escape(title)}</th>' for title in titles])
    rows = "\n".join([
        f'<tr><th scope="row">{escape(line[0])}</th>{"".join([f"<td>{escape(text)}</td>" for text in line[1:]])}</tr>'
        for line in figures
    ])
    return (
        '<div class="card scrolls"><table class="rows" id="figures"><caption class="unseen">Figures by policy</caption>'
        f'<thead><tr><th scope="col">Figure</th>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'
    )
