"""All checkers of a run."""

from __future__ import annotations

from tests.chaos.checkers.accounts import JobAccounts
from tests.chaos.checkers.acquisition.groups import Groups
from tests.chaos.checkers.acquisition.releases import Releases
from tests.chaos.checkers.acquisition.streams import AcquireStreams
from tests.chaos.checkers.answers import Answers
from tests.chaos.checkers.base import Checker, Site
from tests.chaos.checkers.cores import Cores
from tests.chaos.checkers.hosts import Hosts
from tests.chaos.checkers.jobs import Jobs
from tests.chaos.checkers.limits import Limits
from tests.chaos.checkers.promises import Promises
from tests.chaos.checkers.rest import Rest
from tests.chaos.checkers.site_limits import SiteLimits
from tests.chaos.checkers.sizes import Sizes
from tests.chaos.checkers.stories import Stories

CHECKERS: tuple[type[Checker], ...] = (
    Cores, Groups, Jobs, Releases, Promises, AcquireStreams, Stories, Limits, Answers, Rest, JobAccounts, Sizes,
    SiteLimits,
)  # fmt: skip


def all_checkers(site: Site) -> list[Checker]:
    """One of each that has something to look at."""
    return [checker(site) for checker in (*CHECKERS, *((Hosts,) if site.hosts else ()))]
