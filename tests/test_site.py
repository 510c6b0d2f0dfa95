"""The site that `make docs` builds: every page has one place in its navigation, every link leads to a part of it."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import pytest

from .cli.test_program import NAMES
from .protocol.pages import script
from .source import ROOT

site = script("site")
drawing = script("drawing")
SOURCES = {str(path) for path in site.sources()}
PAGES = {name for name in SOURCES if name.endswith(".md")}
SVG = "{http://www.w3.org/2000/svg}"
NAV = re.findall(
    r"^ +- .*?([\w./-]+\.md)$", (ROOT / "rfc/mkdocs.yml").read_text().partition("\nnav:\n")[2], re.MULTILINE
)


def test_every_page_has_one_place_in_the_navigation() -> None:
    assert Counter(NAV) == Counter([*PAGES, "rfc/options.md"])


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_leads_to_a_part_of_the_site(page: str) -> None:
    """That it leads to a file and a heading at all, tests/test_readme.py says."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    named = [(ROOT / page).parent / name for name in re.findall(r"\]\((?!\w+:)([^)#]+)", text)]
    targets = {str(path.resolve().relative_to(ROOT)) for path in named}
    assert targets - SOURCES - {"rfc/options.md"} == set()


def test_the_pages_that_are_made_have_every_command_and_every_public_name() -> None:
    options, api = site.options_page(), site.api_page((ROOT / "rfc/api.md").read_text())
    assert [name for name in NAMES if f"\n## fluxsched {name}\n" not in options] == []
    assert not re.search(r"^ +--help ", options, re.MULTILINE), "-h is on the page as it is in the program"
    for line in (ROOT / "tests/public_names.txt").read_text().splitlines():
        if line.startswith("fluxsched"):
            assert line.partition("(")[0].rpartition(".")[2] in api


def test_a_list_gets_the_blank_line_that_markdown_wants() -> None:
    assert site.with_blank_lines("text:\n- a\n- b\n  c\n- d\n\n| x |\n") == "text:\n\n- a\n- b\n  c\n- d\n\n| x |\n"


@pytest.mark.parametrize("page", sorted(page for page in PAGES if drawing.DIAGRAM.search((ROOT / page).read_text())))
def test_a_picture_has_all_that_its_diagram_has(page: str) -> None:
    for diagram in drawing.DIAGRAM.findall((ROOT / page).read_text()):
        picture = ElementTree.fromstring(drawing.drawn(diagram))
        left, top, width, height = map(float, picture.attrib["viewBox"].split())
        boxes = [{name: float(value) for name, value in box.attrib.items()} for box in picture.iter(f"{SVG}rect")]
        for box in boxes:
            assert left <= box["x"] <= box["x"] + box["width"] <= width
            assert top <= box["y"] <= box["y"] + box["height"] <= height
        texts = Counter(text.text for text in picture.iter(f"{SVG}text"))
        lines = [line for line in diagram.splitlines()[1:] if "[*]" not in line]
        names = {
            name
            for line in lines
            for name in re.match(r" +(?:Note over )?(.+?)(?: ?--?>>? ?([^:]+))?(?::|$)", line).groups()
        }
        labels = [line.partition(": ")[2] for line in lines if ": " in line]
        assert texts.keys() - {"begins", "ends"} >= names - {None}
        assert sum(texts.values()) - texts["begins"] - texts["ends"] == len(boxes) + len(labels)
        assert {text.removeprefix("stays: ") for text in texts} >= set(labels)


def test_a_diagram_that_cannot_be_drawn_ends_the_build() -> None:
    for diagram, word in (("pie\n", "'pie'"), ("flowchart TD\n    a === b\n", "'a === b'")):
        with pytest.raises(ValueError, match=word):
            drawing.drawn(diagram)
