"""How this installation was built: compiled by mypyc, or as plain Python. Both behave the same."""

from __future__ import annotations

from typing import Final

COMPILED, PLAIN = "compiled", "plain"

BUILD: Final[str] = PLAIN if __file__.endswith(".py") else COMPILED
"""What `fluxsched --version` and `fluxsched module stats` show."""
