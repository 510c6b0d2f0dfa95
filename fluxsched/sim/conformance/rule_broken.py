"""What a case raises that finds a law broken."""

from __future__ import annotations


class RuleBroken(Exception):
    """A policy has broken the law of this name; `line` is the policy's, where it is not that of the exception."""

    def __init__(self, law: str, text: str, line: str | None = None) -> None:
        super().__init__(text)
        self.law = law
        self.line = line
