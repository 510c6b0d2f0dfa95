"""Messages as people may read them in a log: fields that the interface marks as secret are ***."""

from __future__ import annotations

import json
from typing import Any, Final

from google.protobuf import json_format

from fluxsched.adapters.si import messages
from fluxsched.core.text import printable

SHOWN_CHARS_MAX: Final = 2000
"""Of a message in a log."""

SECRET: Final = "***"


def shown(message: Any) -> str:
    """A message in one line of JSON, shortened where it is long, without its secrets."""
    value = json_format.MessageToDict(message, preserving_proto_field_name=True)
    text = json.dumps(_masked(message.DESCRIPTOR, value), ensure_ascii=False)
    cut = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}... ({len(text)} characters)"
    return f"{message.DESCRIPTOR.name} {printable(cut)}"


def _masked(descriptor: Any, value: dict[str, Any]) -> dict[str, Any]:
    return {name: _masked_field(descriptor.fields_by_name[name], each) for name, each in value.items()}


def _masked_field(field: Any, value: Any) -> Any:
    if messages.is_secret(field):
        return SECRET
    kind = field.message_type
    if kind is None:
        return value
    if kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {key: _masked_field(inner, each) for key, each in value.items()}
    return [_masked(kind, each) for each in value] if isinstance(value, list) else _masked(kind, value)
