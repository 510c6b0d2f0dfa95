"""What mypyc compiles without a word and what then ends the process: rules that only the sources show."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Source, sources_below


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
    compiled = [source for package in ("core", "jobs", "messaging", "protocol", "resource", "sched", "services", "sim")
                for source in sources_below(f"fluxsched/{package}")]  # fmt: skip
    violations = [violation for source in compiled for violation in c_keywords(source)]
    assert not violations, "\n".join(violations)


def test_an_attribute_that_is_a_word_of_c_is_seen() -> None:
    text = "class A:\n    def f(self):\n        return self._thread, self._threads, self.thread\n"
    assert len(list(c_keywords(Source("fluxsched/sched/a.py", text)))) == 1
