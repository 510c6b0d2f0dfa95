"""Kind of this build: compiled by mypyc, or plain Python. Both behave the same."""

from __future__ import annotations

from typing import Final

COMPILED, PLAIN = "compiled", "plain"

BUILD: Final[str] = PLAIN if __file__.endswith(".py") else COMPILED
"""Build as shown by `fluxsched --version` and `fluxsched module stats`."""
