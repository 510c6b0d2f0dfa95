"""What accounts use and what is their share, as a pass sees it that preempts: U and S in the formulas.

Law: U is what is held, less what is going, plus what those ask for who preempt. Levels are those below the bank that
two accounts share: each is compared with its own share there.
"""

from __future__ import annotations

from fluxsched.sched.accounts.limits import SLACK
from fluxsched.sched.accounts.tree import Account, Accounts


class Levels:
    """U and S of each account, worked out when they are asked for."""

    __slots__ = ("_accounts", "_changes", "_shares")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._changes: dict[Account, float] = {}
        self._shares: dict[Account, float] = {}

    def usage(self, account: Account) -> float:
        """U, in units of weight."""
        return account.all_jobs.usage + self._changes.get(account, 0.0)

    def share(self, account: Account) -> float:
        """S, in units of weight."""
        share = self._shares.get(account)
        if share is None:
            share = self._shares[account] = self._accounts.fair_usage(account)
        return share

    def bound(self, account: Account) -> float:
        """Above this an account is above its share."""
        return self.share(account) * (1 + SLACK)

    def add(self, account: Account, usage: float) -> None:
        """More is used by an account and all above it, or less (below 0)."""
        changes = self._changes
        for at in account.up():
            changes[at] = changes.get(at, 0.0) + usage

    def scope(self, account: Account, usage: float) -> list[Account]:
        """The banks, from the lowest, whose other accounts may be preempted for this one, which asks for so much more.

        Below each of them it stays within its share. There are none if the account itself does not.
        """
        found: list[Account] = []
        at = account
        while at.parent is not None and self.usage(at) + usage <= self.bound(at):
            at = at.parent
            found.append(at)
        return found


def below_common(account: Account, banks: list[Account]) -> tuple[Account, ...]:
    """The account and those above it, below the first of these banks; none if it is below none of them."""
    found: list[Account] = []
    for at in account.up():
        if at in banks:
            return tuple(found)
        found.append(at)
    return ()
