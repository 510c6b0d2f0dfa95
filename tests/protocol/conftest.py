"""Values of every message class, made from its declared types: no class can be forgotten."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from .pages import generate

_TEXT = st.text(max_size=8)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | _TEXT
_OPEN = st.recursive(
    _SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(_TEXT, part, max_size=3), max_leaves=6
)


def _strategy(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case msgspec.inspect.Metadata():
            return _strategy(info.type)
        case msgspec.inspect.AnyType():
            return _OPEN
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType():
            return st.integers(*(bound if bound is not None else 0 for bound in (info.ge, info.le)))
        case msgspec.inspect.FloatType():
            return st.floats(info.ge or 0.0, info.le or 1e9)
        case msgspec.inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern, fullmatch=True)
        case msgspec.inspect.StrType():
            return st.text(max_size=12)
        case msgspec.inspect.BytesType():
            return st.binary(max_size=12)
        case msgspec.inspect.LiteralType():
            return st.sampled_from(info.values)
        case msgspec.inspect.ListType():
            return st.lists(_strategy(info.item_type), max_size=3)
        case msgspec.inspect.VarTupleType():
            return st.lists(_strategy(info.item_type), max_size=3).map(tuple)
        case msgspec.inspect.TupleType():
            return st.tuples(*map(_strategy, info.item_types))
        case msgspec.inspect.DictType():
            return st.dictionaries(_strategy(info.key_type), _strategy(info.value_type), max_size=3)
        case msgspec.inspect.UnionType():
            return st.one_of(*map(_strategy, info.types))
        case msgspec.inspect.StructType():
            return _struct(info.cls)
    raise AssertionError(f"a message field of a type that this test does not know: {info}")


def _struct(cls: type) -> st.SearchStrategy[Any]:
    fields = {field.name: _strategy(field.type) for field in msgspec.inspect.type_info(cls).fields}

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        values = {name: draw(strategy) for name, strategy in fields.items()}
        try:
            return cls(**values)
        except ValueError:  # a rule between fields: the class refuses the combination
            return cls(**_minimal(cls, values))

    return build()


def _minimal(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Only what is required, at values that agree with each other."""
    agreed = {"mode": "unlimited", "type": 0}
    required = [field.name for field in msgspec.inspect.type_info(cls).fields if field.required]
    return {name: agreed.get(name, values[name]) for name in required}


@pytest.fixture(params=generate.all_classes(), ids=lambda cls: f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}")
def message_class(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def values_of(message_class: type) -> st.SearchStrategy[Any]:
    """A strategy for values of `message_class`."""
    return _struct(message_class)
