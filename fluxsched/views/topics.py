"""The table of topics: the feed of each, made of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.views.feeds.feed import Feed, PolledFeed
from fluxsched.views.feeds.figures import FIGURES_EVERY_S, Figures
from fluxsched.views.feeds.groups import GROUPS_EVERY_S, GroupsQuestion
from fluxsched.views.feeds.history import HISTORY_EVERY_S, HistoryQuestion
from fluxsched.views.feeds.job import JobFeed
from fluxsched.views.feeds.jobs import FILTERS, JobsFeed
from fluxsched.views.feeds.machine import MachineFeed, TargetFeed
from fluxsched.views.feeds.messages import MessagesFeed
from fluxsched.views.feeds.params import Params
from fluxsched.views.feeds.shares import SHARES_EVERY_S, SharesQuestion
from fluxsched.views.feeds.timeline import TimelineFeed

MakeFeed = Callable[[Params, Figures], Feed]


def feed_of(topic: str, given: Mapping[str, Any], figures: Figures) -> Feed:
    """The feed of a topic, which must be one of TOPICS. Raises InvalidValue for wrong parameters."""
    known, make = TOPICS[topic]
    return make(Params(topic, given, *known), figures)


TOPICS: Mapping[str, tuple[tuple[str, ...], MakeFeed]] = {
    "machine": ((), lambda params, figures: MachineFeed()),
    "jobs": (FILTERS, JobsFeed),
    "job": (("id",), lambda params, figures: JobFeed(params)),
    "target": (("rank",), lambda params, figures: TargetFeed(params)),
    "timeline": (("since", "until", "targets", "bars_max"), lambda params, figures: TimelineFeed(params)),
    "groups": ((), lambda params, figures: PolledFeed(GroupsQuestion(figures).ask, GROUPS_EVERY_S)),
    "messages": (("topics",), lambda params, figures: MessagesFeed(params)),
    "shares": (("group",), lambda params, figures: PolledFeed(SharesQuestion(params).ask, SHARES_EVERY_S)),
    "history": (
        ("since", "until", "points", "by"),
        lambda params, figures: PolledFeed(HistoryQuestion(params).ask, HISTORY_EVERY_S),
    ),
    "figures": ((), lambda params, figures: PolledFeed(figures.ask, FIGURES_EVERY_S)),
}
"""Its parameters and how it is made, by name."""
