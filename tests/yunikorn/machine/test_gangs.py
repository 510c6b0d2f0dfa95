"""Gangs: which ask takes which placeholder, what time does to the others, and that each placeholder ends once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fluxsched.yunikorn.applications import (
    PLACEHOLDER_TIMEOUT_S,
    TOO_SMALL,
    AllocationsTimedOut,
    ApplicationProgress,
    AsksTimedOut,
    Consequence,
    Gang,
    GangAsk,
    GangConsequence,
    PendingAgain,
    Placeholder,
    PlaceholderReplaced,
    PlaceholderTimedOut,
    StateChanged,
    WaitsAsAny,
)

TIMEOUT = "ResourceReservationTimeout"
FOUR = (("vcore", 4),)


def placeholder(uuid: str, size: int = 4, group: str = "tg", node: str = "n1") -> Placeholder:
    return Placeholder(uuid, f"ask-{group}", group, (("vcore", size),), node)


def real(key: str, size: int = 4, group: str = "tg", order: int = 0) -> GangAsk:
    return GangAsk((order,), key, group, (("vcore", size),))


def gang(*sizes: int, placeholder_ask: int = 0, **options: object) -> ApplicationProgress:
    """An application with placeholders p0, p1, ... of these sizes, allocated at 0 s."""
    ask = (("vcore", placeholder_ask or sum(sizes)),)
    one = ApplicationProgress(0.0, placeholder_ask=ask, **options)  # type: ignore[arg-type]
    one.placeholder_asked("ask-tg", "tg", FOUR, len(sizes), 0.0)
    for at, size in enumerate(sizes):
        one.placeholder_allocated(placeholder(f"p{at}", size), 0.0, 0.0)
    return one


def states(told: Sequence[Consequence]) -> list[str]:
    return [str(each.state) for each in told if isinstance(each, StateChanged)]


def others(told: Sequence[Consequence]) -> list[Consequence]:
    return [each for each in told if not isinstance(each, StateChanged)]


def test_an_application_starts_when_all_its_placeholders_are_allocated() -> None:
    one = ApplicationProgress(0.0, placeholder_ask=(("vcore", 12),))
    assert states(one.placeholder_asked("ask-tg", "tg", FOUR, 2, 0.0)) == ["Accepted"]
    assert states(one.placeholder_allocated(placeholder("a"), 0.0, 0.0)) == []
    assert states(one.placeholder_allocated(placeholder("b", 8), 0.0, 0.0)) == ["Starting"]


def test_a_real_ask_takes_a_placeholder_at_least_as_large() -> None:
    one = gang(4, 8)
    assert others(one.gang_asked(real("r", 6), 1, 1.0)) == [PlaceholderReplaced("p1", "r")]
    assert one.pending == 0
    key, told = one.placeholder_confirmed("p1", 2.0)
    assert key == "r"
    assert (one.pending, one.allocations) == (0, 2)
    assert told == []  # the first replacement moves nothing
    assert others(one.gang_asked(real("s", 4), 1, 3.0)) == [PlaceholderReplaced("p0", "s")]
    assert states(one.placeholder_confirmed("p0", 4.0)[1]) == ["Running"]
    assert one.gang.deadline_s is None


def test_a_confirmed_replacement_is_an_allocation_like_others() -> None:
    one = gang(4)
    one.gang_asked(real("r"), 1, 0.0)
    one.placeholder_confirmed("p0", 0.0)
    assert states(one.released(1.0)) == ["Completing"]


def test_asks_wait_for_placeholders_that_are_pending_in_their_order() -> None:
    one = ApplicationProgress(0.0, placeholder_ask=(("vcore", 8),))
    one.placeholder_asked("ask-tg", "tg", FOUR, 2, 0.0)
    assert others(one.gang_asked(real("late", order=2), 1, 0.0)) == []
    assert others(one.gang_asked(real("early", order=1), 1, 0.0)) == []
    assert others(one.placeholder_allocated(placeholder("a"), 0.0, 0.0)) == [PlaceholderReplaced("a", "early")]
    assert others(one.placeholder_allocated(placeholder("b"), 0.0, 0.0)) == [PlaceholderReplaced("b", "late")]


def test_asks_beyond_the_placeholders_wait_as_any() -> None:
    one = gang(4)
    assert others(one.gang_asked(real("r"), 3, 0.0)) == [PlaceholderReplaced("p0", "r"), WaitsAsAny("r", 2)]


def test_an_ask_of_another_task_group_waits_as_any() -> None:
    assert others(gang(4).gang_asked(real("r", group="other"), 1, 0.0)) == [WaitsAsAny("r", 1)]


def test_a_larger_ask_ends_one_placeholder_and_waits_as_any() -> None:
    one = gang(4, 4)
    told = others(one.gang_asked(real("r", 6), 1, 0.0))
    assert told == [PlaceholderTimedOut("p0", TOO_SMALL), WaitsAsAny("r", 1)]
    assert states(one.placeholder_gone("p0", 1.0)) == []
    assert others(one.gang_asked(real("s"), 1, 1.0)) == [PlaceholderReplaced("p1", "s")]


def test_a_larger_ask_does_not_wait_for_pending_placeholders_that_are_too_small() -> None:
    one = ApplicationProgress(0.0, placeholder_ask=(("vcore", 16),))
    one.placeholder_asked("small", "tg", FOUR, 2, 0.0)
    one.placeholder_asked("large", "tg", (("vcore", 8),), 1, 0.0)
    assert others(one.gang_asked(real("r", 6), 1, 0.0)) == []
    assert others(one.placeholder_allocated(placeholder("a")._replace(key="small"), 0.0, 0.0)) == []
    told = others(one.placeholder_asked("large", "tg", (), 0, 0.0))
    assert told == [PlaceholderTimedOut("a", TOO_SMALL), WaitsAsAny("r", 1)]
    assert others(one.gang_asked(real("s", 6), 1, 0.0)) == [WaitsAsAny("s", 1)]


def test_an_ask_takes_no_placeholder_on_a_node_that_it_may_not_use() -> None:
    one = gang(4, 4)
    ask = GangAsk((0,), "r", "tg", (("vcore", 4),), lambda node_id: node_id != "n1")
    assert others(one.gang_asked(ask, 1, 0.0)) == [PlaceholderTimedOut("p0", TOO_SMALL), WaitsAsAny("r", 1)]


def test_the_ask_is_pending_again_when_its_placeholder_has_gone() -> None:
    one = gang(4, 4)
    one.gang_asked(real("r"), 2, 0.0)
    told = others(one.placeholder_gone("p0", 1.0))
    assert told == [PendingAgain("r"), WaitsAsAny("r", 1)]
    assert (one.pending, one.allocations) == (1, 1)
    assert states(one.gang_unasked("r", 1, 2.0)) == []
    assert one.placeholder_confirmed("p1", 3.0)[0] is None  # its ask has gone: it is only freed
    assert one.state == "Completing"


def test_asks_that_are_released_meanwhile_take_no_placeholder() -> None:
    one = gang(4, 4)
    for key in ("r", "s"):
        one.gang_asked(real(key), 1, 0.0)
    for key in ("r", "s"):
        one.gang_unasked(key, 0, 1.0)
    assert [one.placeholder_confirmed(uuid, 2.0)[0] for uuid in ("p0", "p1")] == [None, None]
    assert (one.pending, one.allocations, one.state) == (0, 0, "Completing")


def test_the_ask_takes_another_placeholder_when_its_own_has_gone() -> None:
    one = gang(4, 4)
    one.gang_asked(real("r"), 1, 0.0)
    assert others(one.placeholder_gone("p0", 1.0)) == [PendingAgain("r"), PlaceholderReplaced("p1", "r")]
    assert one.placeholder_confirmed("p1", 3.0)[0] == "r"
    assert (one.pending, one.allocations) == (0, 1)


def test_the_vector_node_10_placeholders_4_and_8_hard_1_s() -> None:
    one = ApplicationProgress(0.0, execution_timeout_s=1.0, placeholder_ask=(("vcore", 12),), is_hard=True)
    one.placeholder_asked("first", "tg", FOUR, 1, 0.0)
    one.placeholder_asked("second", "tg", FOUR, 1, 0.0)
    one.placeholder_allocated(Placeholder("a", "first", "tg", (("vcore", 4),), "n1"), 0.0, 0.0)
    assert one.next_wake_s == 1.0
    assert one.wake(0.9) == []
    assert one.wake(1.0) == [
        StateChanged("Failing", TIMEOUT, 1_000_000_000),  # type: ignore[arg-type]
        AsksTimedOut(False, TIMEOUT),
        PlaceholderTimedOut("a", TIMEOUT),
        AllocationsTimedOut(TIMEOUT),
    ]
    assert states(one.placeholder_gone("a", 2.0)) == ["Failed"]


def test_a_soft_gang_resumes_without_its_placeholders() -> None:
    one = gang(4, placeholder_ask=12, execution_timeout_s=1.0)
    one.placeholder_asked("large", "tg", (("vcore", 8),), 1, 0.0)
    one.gang_asked(real("r", 6), 1, 0.0)
    assert one.wake(1.0) == [
        StateChanged("Resuming", TIMEOUT, 1_000_000_000),  # type: ignore[arg-type]
        AsksTimedOut(True, TIMEOUT),
        PlaceholderTimedOut("p0", TIMEOUT),
        WaitsAsAny("r", 1),
    ]
    assert one.pending == 1
    assert states(one.placeholder_gone("p0", 2.0)) == ["Accepted"]
    assert states(one.allocated(3.0)) == ["Starting"]


def test_a_soft_gang_without_asks_stays_accepted() -> None:
    one = gang(4, placeholder_ask=12, execution_timeout_s=1.0)
    assert states(one.wake(1.0)) == ["Resuming"]
    assert states(one.placeholder_gone("p0", 2.0)) == ["Accepted"]


def test_from_starting_on_only_placeholders_that_are_not_replaced_time_out() -> None:
    one = gang(4, 4, 4, execution_timeout_s=10.0, is_hard=True)
    one.gang_asked(real("r"), 2, 0.0)
    one.placeholder_confirmed("p0", 1.0)
    assert one.wake(10.0) == [PlaceholderTimedOut("p2", TIMEOUT)]
    assert one.state == "Starting"
    assert one.placeholder_confirmed("p1", 11.0)[0] == "r"
    one.placeholder_gone("p2", 12.0)
    assert one.state == "Running"
    assert one.wake(1000.0) == []


def test_a_hard_gang_that_fails_takes_back_replacements_under_way() -> None:
    one = gang(4, placeholder_ask=12, execution_timeout_s=1.0, is_hard=True)
    one.gang_asked(real("r"), 1, 0.0)
    assert states(one.wake(1.0)) == ["Failing"]
    key, told = one.placeholder_confirmed("p0", 2.0)
    assert key is None
    assert states(told) == ["Failed"]


def test_placeholders_time_out_after_15_minutes_from_the_first_one() -> None:
    one = ApplicationProgress(0.0, placeholder_ask=(("vcore", 8),))
    one.placeholder_asked("ask-tg", "tg", FOUR, 2, 5.0)
    assert one.next_wake_s is None
    one.placeholder_allocated(placeholder("a"), 7.0, 10.0)
    one.placeholder_allocated(placeholder("b"), 8.0, 10.0)
    assert one.gang.deadline_s == 7.0 + PLACEHOLDER_TIMEOUT_S


def test_recovered_placeholders_take_their_old_time() -> None:
    one = ApplicationProgress(100.0, placeholder_ask=(("vcore", 4),), execution_timeout_s=50.0)
    assert states(one.placeholder_recovered(placeholder("a"), 60.0, 100.0)) == ["Accepted", "Starting"]
    assert one.gang.deadline_s == 110.0


def test_a_released_placeholder_ask_lets_its_real_asks_go_on() -> None:
    one = ApplicationProgress(0.0, placeholder_ask=(("vcore", 4),))
    one.placeholder_asked("ask-tg", "tg", FOUR, 1, 0.0)
    assert others(one.gang_asked(real("r"), 1, 0.0)) == []
    assert one.placeholder_asked("ask-tg", "tg", FOUR, 0, 1.0) == [WaitsAsAny("r", 1)]


def test_each_placeholder_is_matched_with_few_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    plain = Gang._match_one

    def match_one(gang: Gang, key: str, task_group: str) -> Iterator[GangConsequence]:
        looked_at.append(key)
        return plain(gang, key, task_group)

    monkeypatch.setattr(Gang, "_match_one", match_one)
    one = ApplicationProgress(0.0, placeholder_ask=(("vcore", 400),))
    for at in range(100):
        one.placeholder_asked(f"p{at}", "tg", FOUR, 1, 0.0)
        one.gang_asked(real(f"r{at}", order=at), 1, 0.0)
    told = [one.placeholder_allocated(placeholder(f"u{at}")._replace(key=f"p{at}"), 0.0, 0.0) for at in range(100)]
    assert [others(each) for each in told] == [[PlaceholderReplaced(f"u{at}", f"r{at}")] for at in range(100)]
    assert len(looked_at) == 200  # when it came, and when it took one
