"""What mypyc compiles without a word and what then ends the process: rules that only the sources show."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

from .source import ROOT, Source, sources_below


def compiled() -> list[Source]:
    """The sources that pyproject.toml has compiled."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    chosen = {path for pattern in hook["custom"]["compiled"] for path in ROOT.glob(pattern)}
    return [
        source for source in sources_below("fluxsched")
        if ROOT / source.path in chosen and "\n# Not compiled: " not in source.text
    ]  # fmt: skip


def later_fields(source: Source) -> Iterator[str]:
    """A NamedTuple's fields are of classes above it: mypyc evaluates them when the module is loaded."""
    classes = {node.name: node.lineno for node in source.tree.body if isinstance(node, ast.ClassDef)}
    for node in source.tree.body:
        match node:
            case ast.ClassDef(bases=[ast.Name("NamedTuple")], body=body):
                fields = [field for field in body if isinstance(field, ast.AnnAssign)]
                named = [name for field in fields for name in ast.walk(field.annotation) if isinstance(name, ast.Name)]
                for name in named:
                    if classes.get(name.id, 0) > node.lineno:
                        yield source.at(name.lineno, f"{node.name} has a field of {name.id}: define it above")


def test_fields_of_named_tuples_are_of_classes_above_them() -> None:
    violations = [violation for source in sources_below("fluxsched") for violation in later_fields(source)]
    assert not violations, "\n".join(violations)


def test_a_field_of_a_later_class_is_seen() -> None:
    text = "class A(NamedTuple):\n    part: B | None\n\nclass B: ...\n\nclass C(NamedTuple):\n    part: B\n"
    assert len(list(later_fields(Source("fluxsched/sched/a.py", text)))) == 1


def float_tuples(source: Source) -> Iterator[str]:
    """A `Final` tuple of floats says `tuple[float, ...]`: mypyc takes a fixed one of another module for not set."""
    for node in source.tree.body:
        match node:
            case ast.AnnAssign(annotation=ast.Name("Final"), value=ast.Tuple(elts=[ast.Constant(float()), *_])):
                yield source.at(node.lineno, f"{ast.unparse(node.target)}: declare it Final[tuple[float, ...]]")


def test_final_tuples_of_floats_have_no_fixed_length() -> None:
    violations = [violation for source in sources_below("fluxsched") for violation in float_tuples(source)]
    assert not violations, "\n".join(violations)


def test_a_final_tuple_of_floats_of_a_fixed_length_is_seen() -> None:
    text = "A: Final = (0.1, 2.0)\nB: Final[tuple[float, ...]] = (0.1, 2.0)\nC: Final = (1, 2)\n"
    assert len(list(float_tuples(Source("fluxsched/system/a.py", text)))) == 1


def struct_factories(source: Source) -> Iterator[str]:
    """A msgspec struct that is compiled makes no default anew: mypyc's class body evaluates `msgspec.field` itself."""
    for node in source.nodes:
        match node:
            case ast.ClassDef(bases=[ast.Attribute(attr="Struct") | ast.Name("Struct")], body=body):
                for call in (call for field in body for call in ast.walk(field) if isinstance(call, ast.Call)):
                    if "default_factory" in {keyword.arg for keyword in call.keywords}:
                        yield source.at(call.lineno, f"{node.name} has a default_factory: say `# Not compiled: `")


def test_structs_with_a_default_factory_are_in_files_that_stay_plain() -> None:
    violations = [violation for source in compiled() for violation in struct_factories(source)]
    assert not violations, "\n".join(violations)


def test_a_default_factory_of_a_struct_is_seen() -> None:
    text = "class A(Struct, frozen=True):\n    a: list[int] = msgspec.field(default_factory=list)\n    b: int = 3\n"
    assert len(list(struct_factories(Source("fluxsched/jobs/a.py", text)))) == 1


def uncached(source: Source) -> Iterator[str]:
    """A file that is compiled has no `cached_property`: mypyc makes of it one that is worked out each time."""
    for node in source.nodes:
        match node:
            case ast.ImportFrom(module="functools", names=names) if "cached_property" in [one.name for one in names]:
                yield source.at(node.lineno, "cached_property caches nothing here: keep the value in an attribute")


def test_compiled_files_have_no_cached_property() -> None:
    violations = [violation for source in compiled() for violation in uncached(source)]
    assert not violations, "\n".join(violations)


def test_a_cached_property_is_seen() -> None:
    source = Source("fluxsched/jobs/a.py", "from functools import cached_property, partial\n")
    assert len(list(uncached(source))) == 1


KEYWORDS = {
    "alignof", "asm", "attribute", "complex", "const", "extension", "imag", "inline", "label", "real", "restrict",
    "signed", "thread", "typeof", "volatile",
}  # fmt: skip


def c_keywords(source: Source) -> Iterator[str]:
    """No attribute is named `_thread` and the like: mypyc puts `_` before it, which makes `__thread`, a word of C."""
    for node in source.nodes:
        match node:
            case ast.Attribute(ast.Name("self"), name) if name.startswith("_") and name[1:] in KEYWORDS:
                yield source.at(node.lineno, f"self.{name} becomes _{name} in C: give it another name")


def test_no_attribute_of_a_compiled_class_is_a_word_of_c() -> None:
    violations = [violation for source in compiled() for violation in c_keywords(source)]
    assert not violations, "\n".join(violations)


def test_an_attribute_that_is_a_word_of_c_is_seen() -> None:
    text = "class A:\n    def f(self):\n        return self._thread, self._threads, self.thread\n"
    assert len(list(c_keywords(Source("fluxsched/sched/a.py", text)))) == 1
