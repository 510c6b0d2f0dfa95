"""JSON and TOML that others wrote: read as values, or refused in one sentence."""

from __future__ import annotations

import tomllib

import pytest

from fluxsched.core.text import PATH_KEYS_MAX, toml_text, with_path
from fluxsched.errors import LimitExceeded


def test_only_what_is_on_the_path_is_copied() -> None:
    tree = {"a": {"b": {"c": 1}, "d": {}}, "e": 5}
    made = with_path(tree, "a.b.c", 2)
    assert (made, tree["a"]) == ({"a": {"b": {"c": 2}, "d": {}}, "e": 5}, {"b": {"c": 1}, "d": {}})
    assert made["a"]["d"] is tree["a"]["d"]  # type: ignore[index]
    assert with_path(tree, "e.f", 1)["e"] == {"f": 1}


def test_a_path_has_so_many_keys() -> None:
    """`submit --setattr` of a thousand periods ended in a RecursionError."""
    with_path({}, ".".join("a" * PATH_KEYS_MAX), 1)
    with pytest.raises(LimitExceeded, match=f"{PATH_KEYS_MAX + 1} keys, the limit is {PATH_KEYS_MAX}"):
        with_path({}, ".".join("a" * (PATH_KEYS_MAX + 1)), 1)


# A configuration as TOML: what is printed is read back.


def test_null_which_toml_lacks_is_left_out_everywhere() -> None:
    """A configuration in JSON may have it (`batch --conf`); it was printed as `None`, which no TOML reader takes."""
    table = {"a": None, "b": [1, None, {"x": None}], "c": [{"d": None, "e": {"f": None}}], "g": {"h": None, "i": 1}}
    assert tomllib.loads(toml_text(table)) == {"b": [1, {}], "c": [{"e": {}}], "g": {"i": 1}}
    assert toml_text({"a": None}) == ""
