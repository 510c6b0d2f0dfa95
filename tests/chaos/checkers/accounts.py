"""What jobs used is told of every job, once, whatever was killed when."""

from __future__ import annotations

from collections import Counter

from tests.chaos.checkers.base import Checker, Truth


class JobAccounts(Checker):
    """Compares the accounts with the jobs that have ended."""

    name = "accounts"

    def settled(self, truth: Truth) -> None:
        """As many jobs of each result as there are."""
        if truth.accounts is None:
            return
        ended = Counter(job["result"].lower() for job in truth.jobs.values() if job["state"] == "INACTIVE")
        counted = Counter(truth.accounts["results"])
        if +ended != +counted:
            raise self.broken(f"{dict(ended)} jobs have ended, {dict(counted)} are counted")
