"""A page of its own: its policy allows just what is in it, data cannot break out, modules keep to their form."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from fluxsched.sim import Ask, Trace, TraceJob, generate, run
from fluxsched.sim.report import UNIX_START_MAX, drawing
from fluxsched.web import standalone
from fluxsched.web.standalone import modules, study_page

HOSTILE = "</script><script>alert(1)</script><!--"


@pytest.fixture(scope="module")
def page() -> str:
    jobs = [TraceJob(at, float(at), 5.0, 9.0, Ask(1), user=HOSTILE) for at in range(3)]
    trace = Trace.of(jobs, name=f"t{HOSTILE}")
    result = run(trace, "fifo", procs=2, placements=True)
    result.label = HOSTILE
    return study_page(drawing(trace, [result]))


def test_its_policy_allows_just_what_is_in_it(page: str) -> None:
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for name, text in (("script-src", script), ("style-src", style)):
        assert f"{name} 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}';" in policy
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"\b(?:src|href)=|https?://(?!www\.w3\.org/)|@import|url\(", page)


def test_names_of_users_and_policies_stay_text(page: str) -> None:
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 2
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    study = json.loads(data)
    assert (study["users"], study["policies"][0]["title"]) == ([HOSTILE], HOSTILE)


def test_the_figures_are_there_without_script(page: str) -> None:
    assert '<th scope="row">jobs completed</th><td>3</td>' in page


def test_what_made_it_is_said_and_when_it_was_if_the_trace_says_so() -> None:
    trace = generate(jobs=3, procs=4, seed=1)
    for text, start in ("", None), ("1700000000", 1_700_000_000), ("-1", None), (str(UNIX_START_MAX), None):
        trace.header["UnixStartTime"] = text
        study = drawing(trace, [run(trace, "easy", placements=True)])
        assert study["unix_start"] == start
    assert "fluxsched 9: fluxsched sim run &lt;x&gt;" in study_page(study, "fluxsched 9: fluxsched sim run <x>")


def test_times_are_for_people_and_the_best_of_policies_is_marked() -> None:
    figure = {"title": "wait max [s]", "group": "Waits", "better": -1}
    figure |= {"texts": ["353,776.400", "7,200.000", "9,000.000"], "numbers": [353776.4, 7200.0, 9000.0]}
    unknown = figure | {"title": "wait mean [s]", "texts": ["3.000", "1.000", ""], "numbers": [3.0, 1.0, None]}
    study = {"trace": "t", "heading": ["t"], "refusals": [], "policies": [{"title": "a"}] * 3}
    study["figures"] = [figure, unknown]
    page = study_page(study)
    assert (
        '<th scope="row">wait max \u2193</th><td title="353,776.400 s">4.09d</td>'
        '<td title="7,200.000 s"><strong class="best">2h</strong> <small>(-98 %)</small></td>'
        '<td title="9,000.000 s">2.5h <small>(-97 %)</small></td></tr>'
    ) in page
    assert '<td title="1.000 s">1s <small>(-67 %)</small></td><td></td></tr>' in page, "nothing is best"
    assert '<th scope="rowgroup" colspan="4">Waits</th>' in page


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.js": "export default 3;\n"}, "in the plain form only"),
        ({"a.js": 'import * as b from "./b.js";\n', "b.js": ""}, "in the plain form only"),
        ({"a.js": 'import { c } from "./b.js";\n', "b.js": "export const d = 1;\n"}, "b.js does not export c"),
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}, "a.js imports itself"),
    ],
)
def test_a_module_of_another_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(standalone, "STATIC", tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        modules("a.js")


def test_modules_are_taken_once_each_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "STATIC", tmp_path)
    (tmp_path / "x").mkdir()
    needs = 'import { b as c } from "./x/b.js";\nimport { d } from "./d.js";\n'
    (tmp_path / "a.js").write_text(f"{needs}export function show() {{}}\n")
    (tmp_path / "x/b.js").write_text('import { d } from "../d.js";\nexport const b = d;\n')
    (tmp_path / "d.js").write_text("export const d = 1;\n")
    script = modules("a.js")
    assert re.findall(r"^const (module_\w+)", script, re.MULTILINE) == ["module_d", "module_x_b", "module_a"]
    assert "const { b: c } = module_x_b;" in script
