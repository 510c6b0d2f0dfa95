"""`--conf`: the configuration of a nested instance, built from the command line as Flux's batch does."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from fluxsched.cli.common.values import read_text
from fluxsched.core.jsontext import load_object, with_path
from fluxsched.errors import InvalidValue


def merged_config(texts: Iterable[str]) -> dict[str, Any] | None:
    """What all `--conf` together say, the later over the earlier; None without any.

    Each is TOML or JSON of several lines, `KEY=VALUE` with VALUE as JSON or text, or a file `*.toml` or `*.json`.
    Raises InvalidValue naming the text, OSError.
    """
    found: dict[str, Any] | None = None
    for text in texts:
        found = _over(found or {}, _read(text))
    return found


def _read(text: str) -> dict[str, Any]:
    if "\n" in text:
        return _parsed(text, "--conf")
    if "=" in text:
        key, _, value = text.partition("=")
        if not all(key.split(".")):
            raise InvalidValue(f"--conf {text!r}: {key!r} is not a dotted key")
        return with_path({}, key, _value(value))
    if not text.endswith((".toml", ".json")):
        raise InvalidValue(f"--conf {text!r} is neither KEY=VALUE nor a file whose name ends in .toml or .json")
    return _parsed(read_text(text, "--conf"), f"--conf {text}")


def _parsed(text: str, where: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return load_object(text, where)
    try:
        found = tomllib.loads(text)
        json.dumps(found)
    except (tomllib.TOMLDecodeError, TypeError, RecursionError) as fault:
        raise InvalidValue(f"{where} is not TOML that can be represented in JSON: {fault}") from None
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for key, value in above.items():
        before = made.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        made[key] = _over(before or {}, value) if both else value
    return made
