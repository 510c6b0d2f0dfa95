"""rfc/si.md: every message of the interface is shown, and every example parses as its message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import json_format

from fluxsched.yunikorn import messages

RFC = Path(__file__).parents[2] / "rfc"
EXAMPLES = re.findall(r"<!-- si: (\w+) -->\n```json\n(.*?)```", (RFC / "si.md").read_text(), re.DOTALL)
DECLARED = re.findall(
    r"^message (\w+) ", (RFC / "si.proto").read_text() + (RFC / "si_extra.proto").read_text(), re.MULTILINE
)


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_is_its_message(name: str, text: str) -> None:
    shape = getattr(messages, name)
    message = json_format.Parse(text, shape(), ignore_unknown_fields=False)
    assert shape.FromString(message.SerializeToString()) == message
    assert bool(message.ListFields()) == bool(shape.DESCRIPTOR.fields)


def test_every_message_is_shown_once_and_has_a_class() -> None:
    assert sorted(name for name, _ in EXAMPLES) == sorted(DECLARED)


def test_every_field_is_in_some_example() -> None:
    shown = " ".join(text for _, text in EXAMPLES)
    for name in DECLARED:
        for field in getattr(messages, name).DESCRIPTOR.fields:
            assert f'"{field.name}"' in shown, f"{name}.{field.name}"


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"<!-- python -->\n```python\n(.*?)```", (RFC / "si.md").read_text(), re.DOTALL)
    exec(compile(program, "si.md", "exec"), {})
    assert capsys.readouterr().out == "n1\n"
