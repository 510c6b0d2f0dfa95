"""All checkers of a run."""

from __future__ import annotations

from tests.chaos.checkers.accounts import JobAccounts
from tests.chaos.checkers.acquisition.groups import Groups
from tests.chaos.checkers.acquisition.releases import Releases
from tests.chaos.checkers.acquisition.streams import AcquireStreams
from tests.chaos.checkers.answers import Answers
from tests.chaos.checkers.base import Checker, Site
from tests.chaos.checkers.cores import Cores
from tests.chaos.checkers.health import Health
from tests.chaos.checkers.hosts import Hosts
from tests.chaos.checkers.jobs import Jobs
from tests.chaos.checkers.limits import Limits
from tests.chaos.checkers.outages import Outages
from tests.chaos.checkers.parts import Parts
from tests.chaos.checkers.programs import Programs
from tests.chaos.checkers.promises import Promises
from tests.chaos.checkers.rest import Rest
from tests.chaos.checkers.site_limits import SiteLimits
from tests.chaos.checkers.sizes import Sizes
from tests.chaos.checkers.spares import Spares
from tests.chaos.checkers.stories import Stories

CHECKERS: tuple[type[Checker], ...] = (
    Cores, Groups, Jobs, Releases, Promises, AcquireStreams, Stories, Limits, Answers, Rest, JobAccounts, Sizes,
    SiteLimits, Outages, Parts,
)  # fmt: skip


def all_checkers(site: Site) -> list[Checker]:
    """One of each that has something to look at."""
    more = (
        *((Hosts,) if site.hosts else ()),
        *((Health,) if site.health_timeout_s else ()),
        *((Spares,) if site.spares else ()),
        *((Programs,) if site.prolog or site.epilog else ()),
    )
    return [checker(site) for checker in (*CHECKERS, *more)]
