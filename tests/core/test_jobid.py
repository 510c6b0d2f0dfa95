"""Job ids: their five forms, and templates that contain them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.jobid import (
    GENERATOR_MAX,
    ID_FORMS,
    JOB_TAGS,
    JOBID_MAX,
    NODE_TAGS,
    SEQUENCE_MAX,
    TAGS_NAMED_MAX,
    TASK_TAGS,
    TEXT_CHARS_MAX,
    TIMESTAMP_MAX,
    FluidGenerator,
    check_template,
    format_dothex,
    format_f58,
    format_hex,
    is_shared,
    parse_jobid,
    parse_jobids,
)
from fluxsched.errors import InvalidValue, LimitExceeded

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc19_fluid.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("texts", VECTORS["ids"], ids=lambda texts: texts["decimal"])
def test_rfc_examples_both_ways(texts: dict[str, str]) -> None:
    id = int(texts["decimal"])
    assert [parse_jobid(text) for text in texts.values()] == [id] * 4
    assert (format_f58(id), format_dothex(id), format_hex(id)) == (texts["f58"], texts["dothex"], texts["hex"])
    assert format_f58(id, ascii=True) == "f" + texts["f58"][1:]


@pytest.mark.parametrize(("text", "same"), VECTORS["same"])
def test_other_spellings(text: str, same: str) -> None:
    assert parse_jobid(text) == parse_jobid(same)


@pytest.mark.parametrize("text", VECTORS["invalid"])
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="job id"):
        parse_jobid(text)


@pytest.mark.parametrize("text", VECTORS["too_large"])
def test_above_64_bits_is_refused(text: str) -> None:
    with pytest.raises(LimitExceeded, match="64 bits"):
        parse_jobid(text)


def test_long_text_and_other_types_are_refused() -> None:
    with pytest.raises(InvalidValue, match=str(TEXT_CHARS_MAX)):
        parse_jobid("1" * (TEXT_CHARS_MAX + 1))
    with pytest.raises(InvalidValue, match="string"):
        parse_jobid(7)


def test_ranges_of_job_ids_have_a_first_and_a_last_one() -> None:
    assert parse_jobids("7") == (7, 7)
    assert parse_jobids("ƒ2..0x20") == (1, 32)
    for text, fault in (("9..ƒ2", "'9..ƒ2' ends before it begins"), ("..5", "of 0 characters"), ("1..2..3", "'2..3'")):
        with pytest.raises(InvalidValue, match=fault):
            parse_jobids(text)


@pytest.mark.parametrize("id", [-1, JOBID_MAX + 1])
def test_only_64_bit_ids_are_printed(id: int) -> None:
    for form in (format_f58, format_dothex, format_hex):
        with pytest.raises(InvalidValue):
            form(id)


@given(st.integers(0, JOBID_MAX))
def test_parse_undoes_print(id: int) -> None:
    for text in (format_f58(id), format_f58(id, ascii=True), format_dothex(id), format_hex(id), str(id)):
        assert parse_jobid(text) == id


def test_layout() -> None:
    id = FluidGenerator(generator_id=5, epoch_ms=1000).next(1007)
    assert (id >> 24, id >> 10 & GENERATOR_MAX, id & SEQUENCE_MAX) == (7, 5, 0)


def test_a_full_millisecond_borrows_the_next() -> None:
    generator = FluidGenerator(0, 0)
    made = [generator.next(7) for _ in range(SEQUENCE_MAX + 2)]
    assert made[-2:] == [7 << 24 | SEQUENCE_MAX, 8 << 24]
    assert generator.next(8) == 8 << 24 | 1
    assert generator.next(9) == 9 << 24


def test_restart_stays_above_the_last_id() -> None:
    before = FluidGenerator(3, 0)
    last = [before.next(100) for _ in range(1500)][-1]
    assert FluidGenerator(3, 0, last_id=last).next(50) > last


def test_limits_of_the_generator() -> None:
    assert FluidGenerator(GENERATOR_MAX, 0).next(TIMESTAMP_MAX) == JOBID_MAX - SEQUENCE_MAX
    with pytest.raises(LimitExceeded, match="epoch"):
        FluidGenerator(0, 0).next(TIMESTAMP_MAX + 1)
    for generator_id in (-1, GENERATOR_MAX + 1):
        with pytest.raises(InvalidValue, match="generator id"):
            FluidGenerator(generator_id, 0)


@given(st.lists(st.integers(-50, 50), max_size=200), st.integers(0, 50))
def test_ids_ascend_whatever_the_clock_does(times_ms: list[int], epoch_ms: int) -> None:
    generator = FluidGenerator(1, epoch_ms)
    made = [generator.next(now_ms) for now_ms in times_ms]
    assert all(before < after for before, after in pairwise(made))
    assert all(id >> 10 & GENERATOR_MAX == 1 for id in made)


# Tags in the names of output files: which there are, and which are for all tasks.


IDS = [f"{tag}.{form}" for tag in ("id", "jobid") for form in ID_FORMS if form]


@pytest.mark.parametrize("tag", [*JOB_TAGS, *IDS, *NODE_TAGS, *TASK_TAGS])
def test_every_tag_is_known_and_has_its_scope(tag: str) -> None:
    check_template(f"a{{{{{tag}}}}}b{{{{ {tag} }}}}", "output")
    assert is_shared(f"x-{{{{{tag}}}}}") is (tag in JOB_TAGS or tag in IDS)


@pytest.mark.parametrize("template", ["plain", "{id}", "{{", "}}", "{{id", "{ {id}}"])
def test_what_is_no_tag_is_let_through(template: str) -> None:
    check_template(template, "output")


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("x-{{jobname}}", "unknown tag {{jobname}}: known are id, jobid, name"),
        ("{{id.words}}/{{ID}}/{{id}}", "unknown tag {{id.words}}, {{ID}}: known are"),
        ("{{}}", "unknown tag {{}}: known"),
        ("{{tmpdir}}", "unknown tag {{tmpdir}}: known"),
        ("{{a\x1b}}", "unknown tag {{a\\x1b}}: known"),
    ],
)
def test_unknown_tags_are_named_with_the_known_ones(template: str, named: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_template(template, "output")
    assert str(caught.value).startswith(f"output: {named}")


def test_no_more_than_some_unknown_tags_are_named() -> None:
    with pytest.raises(InvalidValue) as caught:
        check_template("".join(f"{{{{x{at}}}}}" for at in range(TAGS_NAMED_MAX + 1)), "output")
    assert f"{{{{x{TAGS_NAMED_MAX - 1}}}}}: known are" in str(caught.value)
