"""YAML into plain values: what stays text, and the limits on what is hostile."""

from __future__ import annotations

import pytest

pytest.importorskip("yaml")

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.yunikorn import sections as faults
from fluxsched.yunikorn.sections import CONFIG_CHARS_MAX, CONFIG_DEPTH_MAX, load_yaml


def test_scalars_stay_as_they_are_written() -> None:
    text = "{a: 010, b: no, c: ~, d: '', e: , f: 'null', g: 1.50, h: [x, null]}"
    assert load_yaml(text) == {
        "a": "010", "b": "no", "c": None, "d": "", "e": None, "f": "null", "g": "1.50", "h": ["x", None],
    }  # fmt: skip
    assert load_yaml("") is None


def test_an_alias_stands_for_what_it_names() -> None:
    assert load_yaml("{a: &x {b: 1}, c: *x, d: &y z, e: *y}") == {"a": {"b": "1"}, "c": {"b": "1"}, "d": "z", "e": "z"}


def test_aliases_that_multiply_reach_the_limit() -> None:
    text = "a0: &a0 x\n" + "".join([f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(20)])
    with pytest.raises(LimitExceeded, match="more than 100000 parts"):
        load_yaml(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [*x]", "line 1: there is no complete anchor 'x'"),
        ("a: *y", "line 1|undefined alias"),
        ("a: 1\na: 2", "line 2: the key 'a' is given twice"),
        ("? [a]\n: b", "line 1: a key must be a text"),
        ("a: !!python/object:os.system x", "line 1: remove the tag"),
        ("a: [", "^not YAML: line 2, column 1: while parsing a flow node, did not find expected node content$"),
        ("a: \0", "not YAML"),
        ("a: '\ud800'", "not YAML"),
        ("a: 1\n---\nb: 2", "line 2: a second document"),
        ("\ta: 1", "not YAML"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        load_yaml(text)


def test_texts_depth_and_parts_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceeded, match=f"above the limit of {CONFIG_CHARS_MAX}"):
        load_yaml("#" * (CONFIG_CHARS_MAX + 1))
    assert load_yaml("[" * CONFIG_DEPTH_MAX + "]" * CONFIG_DEPTH_MAX)
    for levels in (CONFIG_DEPTH_MAX + 1, 100_000):  # some releases of PyYAML have a limit of their own between them
        with pytest.raises(LimitExceeded, match=f"limit (of|is) {CONFIG_DEPTH_MAX} levels"):
            load_yaml("[" * levels)
    monkeypatch.setattr(faults, "CONFIG_NODES_MAX", 4)
    assert load_yaml("[a, b, c]")
    with pytest.raises(LimitExceeded, match="more than 4 parts"):
        load_yaml("[a, b, c, d]")
