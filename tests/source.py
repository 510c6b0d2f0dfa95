"""Python files as the rules about them read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the repository's top, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree, from the top: a dozen rules go through them."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def functions(self) -> tuple[tuple[ast.AST, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
        """Every function with what it stands in, outer ones first."""
        return tuple(
            (parent, node)
            for parent in self.nodes
            if not isinstance(parent, ast.expr | ast.expr_context)
            for node in ast.iter_child_nodes(parent)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )

    @cached_property
    def imported(self) -> tuple[tuple[int, str], ...]:
        """See `imports`: several rules are about them."""
        return tuple(_imports(self))

    @property
    def package(self) -> str | None:
        """The package of fluxsched that it belongs to ("" for the top), None outside."""
        parts = self.path.removesuffix(".py").split("/")
        if parts[0] != "fluxsched":
            return None
        return "" if parts[1] == "__init__" else parts[1]

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


@cache
def sources_below(*trees: str) -> list[Source]:
    """The files below these directories; each is read and parsed once, however many rules go through it."""
    return [_source(file) for tree in trees for file in sorted((ROOT / tree).rglob("*.py"))]


@cache
def _source(file: Path) -> Source:
    return Source(file.relative_to(ROOT).as_posix(), file.read_text())


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also inside functions; `from a import b` names both a and a.b."""
    return iter(source.imported)


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)
