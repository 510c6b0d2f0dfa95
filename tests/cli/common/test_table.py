"""Formats as Flux has them, and alignment."""

from __future__ import annotations

import pytest

from fluxsched.cli import output
from fluxsched.cli.output import COLUMN_WIDTH_MAX, LIST_ROOM_MIN, Field, parse_format, render
from fluxsched.errors import InvalidValue

FIELDS = {name: Field(name.upper(), lambda row, name=name: row.get(name)) for name in ("id", "name", "time")}
ROWS = [{"id": 7, "name": "long name", "time": 90.0}, {"id": 12345, "name": "x", "time": 0.0}]


def table(layout: str, rows=ROWS, **options) -> list[str]:
    return render(rows, parse_format(layout, FIELDS), FIELDS, **options)


@pytest.mark.parametrize(
    ("layout", "want"),
    [
        ("{id:>4} {name}", ["   ID NAME", "    7 long name", "12345 x"]),
        ("{id} {name:>10}", ["ID          NAME", "7      long name", "12345          x"]),
        ("{name:<4.4}|{id}", ["NAME|ID", "long|7", "x   |12345"]),
        ("{name:<4.4+}|{id}", ["NAME|ID", "lon+|7", "x   |12345"]),
        ("{id:*^7}.", ["**ID***.", "***7***.", "*12345*."]),
        ("{time!F:>6h}", ["  TIME", "  1.5m", "     -"]),
        ("{time!H}", ["TIME", "0:01:30", "0:00:00"]),
        ("{time:.1f}", ["TIME", "90.0", "0.0"]),
        ("{time!D}", ["TIME", "1970-01-01T00:01:30", ""]),
        ("{time!d:%H.%M::>8}", ["    TIME", "   00.01", "   00.00"]),
        ("{id:x}", ["ID", "7", "3039"]),
        ("+:{name:<4}+{{}}", ["NAME     +{}", "long name+{}", "x        +{}"]),
    ],
)
def test_formats(layout: str, want: list[str]) -> None:
    assert table(layout) == want


@pytest.mark.parametrize("is_tty", [True, False])
def test_what_takes_long_is_said_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_tty: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_tty)
    with output.working("writing a"):
        assert capsys.readouterr().err == ("writing a ..." if is_tty else "")
    assert capsys.readouterr() == ("", f"\r{' ' * 13}\r" if is_tty else "")


def test_no_header() -> None:
    assert table("{id}", header=False) == ["7", "12345"]


@pytest.mark.parametrize(("values", "want"), [((None, ""), "ID|"), ((0, 0), "ID|"), ((None, 3), "ID| TIME|")])
def test_a_droppable_column_vanishes_when_empty_with_the_text_before_it(values: tuple, want: str) -> None:
    rows = [{"id": 1, "time": value} for value in values]
    assert table("{id}| ?:{time}|", rows)[0] == want


def test_no_rows() -> None:
    assert table("{id:>6} {name}", []) == ["    ID NAME"]
    assert table("{id:>6} {name}", [], header=False) == []


ELASTIC = "{id:>5} {name:<4.4+*} {time!F}"


@pytest.mark.parametrize(
    ("columns", "want"),
    [(None, "long name"), (80, "long name"), (18, "long n+"), (12, "lon+")],
    ids=["no terminal", "wide", "narrow", "too narrow"],
)
def test_a_column_takes_the_room_that_the_others_leave_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int | None, want: str
) -> None:
    monkeypatch.setattr("sys.stdout", type("Out", (), {"isatty": lambda self: columns is not None})())
    monkeypatch.setenv("COLUMNS", str(columns or 12))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = table(ELASTIC)
    assert lines[1] == f"    7 {want} 1.5m"
    assert columns in (None, 12) or max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("columns", "want"),
    [
        (None, ["    7 n[0-1,3-4,6,8-11,13-16]"]),
        (6 + LIST_ROOM_MIN - 1, ["    7 n[0-1,3-4,6,8-11,13-16]"]),
        (6 + LIST_ROOM_MIN, ["    7 n[0-1,3-4,6,", "      8-11,13-16]"]),
    ],
    ids=["no terminal", "too narrow", "narrow"],
)
def test_a_list_that_is_too_long_for_the_terminal_goes_on_below_itself(
    monkeypatch: pytest.MonkeyPatch, columns: int | None, want: list[str]
) -> None:
    monkeypatch.setattr("sys.stdout", type("Out", (), {"isatty": lambda self: columns is not None})())
    monkeypatch.setenv("COLUMNS", str(columns or 8))
    monkeypatch.setenv("NO_COLOR", "1")
    assert table("{id:>5} {name}", [{"id": 7, "name": "n[0-1,3-4,6,8-11,13-16]"}])[1:] == want


def test_all_unknown_fields_are_named() -> None:
    with pytest.raises(InvalidValue, match="unknown field nix, nope; the fields are id, name, time"):
        parse_format("{nope} {id} {nix}", FIELDS)


@pytest.mark.parametrize("layout", ["{id", "{id:banana}", "{id!q}", "nothing", f"{{id:{COLUMN_WIDTH_MAX + 1}}}"])
def test_what_is_no_format_is_refused(layout: str) -> None:
    with pytest.raises(InvalidValue, match="format"):
        parse_format(layout, FIELDS)


def test_colour_is_laid_over_the_aligned_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "colourful", lambda: True)
    fields = {"id": Field("ID", lambda row: row, lambda value: output.RED if value == "a" else None)}
    assert render(["a", "bcd"], parse_format("{id:>3}|", fields), fields) == [" ID|", "\x1b[31m  a\x1b[0m|", "bcd|"]


@pytest.mark.parametrize(
    ("tty", "no_color", "want"), [(True, "", True), (True, "1", False), (False, "", False), (False, "1", False)]
)
def test_colour_only_on_a_terminal_without_no_color(
    monkeypatch: pytest.MonkeyPatch, tty: bool, no_color: str, want: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout", type("Out", (), {"isatty": lambda self: tty})())
    assert output.colourful() is want


@pytest.mark.parametrize(
    ("duration_s", "want"),
    [
        (0, "0s"),
        (0.25, "0.25s"),
        (0.00431, "4.31ms"),
        (0.4306, "0.43s"),
        (21.36, "21.4s"),
        (59.99, "60s"),
        (90, "1.5m"),
        (8400, "2.33h"),
        (86400 * 1234.5, "1234d"),
        (86400, "1d"),
        (float("inf"), "infinity"),
    ],
)
def test_durations(duration_s: float, want: str) -> None:
    assert output.duration_text(duration_s) == want


def test_ascii_where_the_terminal_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", type("Out", (), {"encoding": "ascii"})())
    assert (output.tick(True), output.tick(False), output.jobid_text(5)) == ("y", "n", "f6")
