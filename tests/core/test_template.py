"""Tags in the names of output files: which there are, and which are for all tasks."""

from __future__ import annotations

import pytest

from fluxsched.core.jobid import ID_FORMS, JOB_TAGS, NODE_TAGS, TAGS_NAMED_MAX, TASK_TAGS, check_template, is_shared
from fluxsched.errors import InvalidValue

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
