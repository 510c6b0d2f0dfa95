"""A configuration as TOML: what is printed is read back."""

from __future__ import annotations

import tomllib

from fluxsched.core.documents import toml_text


def test_null_which_toml_lacks_is_left_out_everywhere() -> None:
    """A configuration in JSON may have it (`batch --conf`); it was printed as `None`, which no TOML reader takes."""
    table = {"a": None, "b": [1, None, {"x": None}], "c": [{"d": None, "e": {"f": None}}], "g": {"h": None, "i": 1}}
    assert tomllib.loads(toml_text(table)) == {"b": [1, {}], "c": [{"e": {}}], "g": {"i": 1}}
    assert toml_text({"a": None}) == ""
