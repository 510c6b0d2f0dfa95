"""A turn: messages and their limits, slices, managers that are paused or read nothing, events and container states."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.errors import Refused
from fluxsched.yunikorn import bookings, requests, tables
from fluxsched.yunikorn import machine as rm_module
from fluxsched.yunikorn import tables as answers
from fluxsched.yunikorn.bookings import LOOK_S, LOOKS_MAX, Bookings
from fluxsched.yunikorn.machine import UNREAD_ITEMS_MAX
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    NODES,
    Broke,
    EndStreams,
    NodeInfo,
    RegisterResourceManagerRequest,
    SendResponse,
)
from fluxsched.yunikorn.requests import CONSTRAINTS_CACHED_MAX
from fluxsched.yunikorn.tables import (
    EVENTS_MAX,
    HEADS_MAX,
    ITEMS_MAX,
    KEPT_ITEMS_MAX,
    RESOURCES_KNOWN_MAX,
    RESPONSE_BYTES_MAX,
)
from fluxsched.yunikorn.tree.preemption import RESERVE_AFTER_S

from .rms import Client, World, resource


def in_one_turn(world: World) -> list[Any]:
    return list(world.machine.turn(world.now_s))


# ---- messages


def test_a_turn_has_one_message_of_a_kind_in_their_order() -> None:
    rm = Client().ask("early").node("n1", 10).node("n2", 10).application().ask("a", repeats=3)
    sent = in_one_turn(rm.world)
    assert [effect.kind for effect in sent] == [APPLICATIONS, NODES, ALLOCATIONS]
    assert (len(sent[1].response.accepted), len(sent[2].response.new)) == (2, 3)
    assert [item.allocationKey for item in sent[2].response.rejected] == ["early"]


def test_a_message_has_so_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (answers, rm_module):
        monkeypatch.setattr(module, "ITEMS_MAX", 4)
    rm = Client().node("n1", 10).application().ask("a", repeats=10)
    assert [len(response.new) for response in rm.heard(ALLOCATIONS)] == [4, 4, 2]
    rm.remove()
    assert [len(response.released) for response in rm.heard(ALLOCATIONS)] == [4, 4, 2]
    assert ITEMS_MAX == 1000


def test_a_message_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RESPONSE_BYTES_MAX", 1000)
    rm = Client().node("n1", 10).application().ask("a", repeats=10, tags={"x": "y" * 300})
    responses = rm.heard(ALLOCATIONS)
    assert len(responses) > 1
    assert all(response.ByteSize() <= 1000 for response in responses)
    assert [item.UUID for response in responses for item in response.new] == [f"u{n}" for n in range(1, 11)]
    assert RESPONSE_BYTES_MAX == 1 << 20


def test_an_allocation_is_new_before_it_is_released_also_where_a_message_is_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "RESPONSE_BYTES_MAX", 100)
    messages = answers.Outgoing("rm")
    for n in range(4):
        messages.allocations.next().new.add(UUID=f"u{n}", allocationKey="k" * 30)
        messages.allocations.next().released.add(UUID=f"u{n}")
    sent = []
    while len(messages):
        (effect,) = messages.messages([ALLOCATIONS])
        for field in ("new", "released"):
            sent += [(field, item.UUID) for item in getattr(effect.response, field)]
    assert len(sent) == 8
    assert all(sent.index(("new", f"u{n}")) < sent.index(("released", f"u{n}")) for n in range(4))


def test_answers_wait_for_the_stream_of_their_kind() -> None:
    world = World()
    machine = world.machine
    machine.register(RegisterResourceManagerRequest(rmID="rm"), 0.0)
    machine.stream_opened("rm", APPLICATIONS, 0.0)
    rm = Client.__new__(Client)
    rm.world, rm.rm_id, rm.machine = world, "rm", machine
    rm.node("n1", 10).application()
    assert [effect.kind for effect in in_one_turn(world)] == [APPLICATIONS]
    assert machine.next_wake_s > world.now_s
    machine.stream_opened("rm", NODES, 0.0)
    assert [effect.kind for effect in in_one_turn(world)] == [NODES]


# ---- slices


def ticking(step_s: float) -> Any:
    ticks = count()
    return lambda: next(ticks) * step_s


def test_requests_and_passes_are_cut_and_go_on_in_the_next_turn() -> None:
    world = World(elapsed_s=ticking(0.004))
    one, other = Client(world, "one"), Client(world, "other")
    for rm in (one, other):
        rm.node("n1", 1000).application()
    world.run()
    world.said.clear()
    one.ask("a", repeats=200)
    other.ask("a", repeats=200)
    sent = [effect for effect in in_one_turn(world) if isinstance(effect, SendResponse) and effect.kind == ALLOCATIONS]
    assert sorted(effect.rm_id for effect in sent) == ["one", "other"]
    assert all(0 < len(effect.response.new) < 100 for effect in sent)
    assert world.machine.next_wake_s == 0.0
    world.run()
    assert [rm.used()["vcore"] for rm in (one, other)] == [200, 200]


def test_a_large_request_is_read_in_slices() -> None:
    world = World(elapsed_s=ticking(0.004))
    rm, other = Client(world, "one"), Client(world, "other")
    rm.nodes(*[_node(f"n{n}") for n in range(100)])
    other.node("n1", 1)
    sent = in_one_turn(world)
    assert {effect.rm_id: len(effect.response.accepted) for effect in sent} == {"one": 32, "other": 1}
    assert world.machine.backlog("one") == 100
    world.run()
    assert len(rm.dump()["nodes"]) == 100
    assert world.machine.backlog("one") == 0


def _node(node_id: str) -> Any:
    from fluxsched.yunikorn.messages import NodeInfo

    return NodeInfo(nodeID=node_id, action=NodeInfo.CREATE, schedulableResource=resource(1))


def test_an_application_is_removed_in_slices() -> None:
    world = World(elapsed_s=ticking(0.004))
    rm, other = Client(world, "one"), Client(world, "other")
    rm.node("n1", 1000).application().ask("a", repeats=200).run()
    world.said.clear()
    rm.remove()
    other.node("n1", 1)
    sent = in_one_turn(world)
    assert [effect.kind for effect in sent if effect.rm_id == "other"] == [NODES]
    assert [len(effect.response.released) for effect in sent if effect.rm_id == "one"] == [32]
    assert rm.used() == {"vcore": 168}
    world.run()
    assert rm.used() == {}
    assert rm.application_items() == [("updated", "app", "Completed")]


# ---- managers that do not read


def test_a_manager_that_reads_nothing_gets_no_decisions_and_others_do() -> None:
    world = World()
    one, other = Client(world, "one"), Client(world, "other")
    for rm in (one, other):
        rm.node("n1", 10).application().run()
    world.said.clear()
    world.machine.unread("one", UNREAD_ITEMS_MAX)
    one.ask()
    other.ask()
    assert (one.heard(ALLOCATIONS), len(other.new())) == ([], 1)
    assert world.machine.next_wake_s > world.now_s
    world.machine.unread("one", 0)
    assert len(one.new()) == 1


def test_a_paused_manager_gets_no_decisions_and_its_answers_are_kept() -> None:
    rm = Client().node("n1", 10).application().run()
    rm.world.said.clear()
    rm.ask().node("n2", 10)
    rm.machine.connection_lost("rm", rm.world.now_s)
    assert rm.heard(NODES) == []
    assert rm.used() == {}
    rm.machine.stream_opened("rm", NODES, rm.world.now_s)
    assert len(rm.new()) == 1
    assert rm.node_items() == [("accepted", "n2", "")]


def test_a_paused_manager_is_stopped_when_too_many_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rm_module, "KEPT_ITEMS_MAX", 5)
    rm = Client().node("n1", 10)
    rm.ask("x", repeats=0)
    rm.machine.connection_lost("rm", rm.world.now_s)
    for _ in range(5):
        rm.ask("x", repeats=0)
    rm.world.run()
    (effect,) = rm.world.said
    assert isinstance(effect, EndStreams)
    with pytest.raises(Refused, match="register"):
        rm.node("n1", 1)
    assert KEPT_ITEMS_MAX == 100_000


def test_a_removal_of_more_than_is_kept_does_not_stop_a_manager_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rm_module, "KEPT_ITEMS_MAX", 5)
    rm = Client().node("n1", 10).application().ask("a", repeats=10).run().remove()
    assert sum(len(response.released) for response in rm.heard(ALLOCATIONS)) == 10


def test_a_bug_costs_one_manager_its_state_and_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    one, other = Client(world, "one"), Client(world, "other")
    other.node("n1", 10).application().run()
    monkeypatch.setattr(Bookings, "wake", lambda self, now_s, paused: 1 / 0 if self.outgoing._rm_id == "one" else None)
    other.ask()
    kinds = [type(effect) for effect in in_one_turn(world)]
    assert kinds.count(Broke) == kinds.count(EndStreams) == 1
    assert other.used() == {"vcore": 1}
    with pytest.raises(Refused, match="register"):
        one.node("n1", 1)


# ---- events and container states


def test_events_of_what_happens() -> None:
    rm = Client(observed=True).node("n1", 10).application(queue="root.new").ask("a", 4).ask("x", 0).release("u9")
    rm.run().release("u1").remove()
    events, states = rm.run(31).observed()
    told = [(event.type, event.objectID, event.groupID, event.reason, event.eventChangeType) for event in events]
    kind, change = answers, answers
    assert told == [
        (kind.NODE, "n1", "default", "Accepted", change.ADD),
        (kind.QUEUE, "root.new", "root", "Added", change.ADD),
        (kind.APP, "app", "root.new", "Accepted", change.ADD),
        (kind.REQUEST, "a", "app", "AskAccepted", change.ADD),
        (kind.APP, "app", "root.new", "Accepted", change.SET),
        (kind.REQUEST, "x", "app", "Rejected", change.NONE),
        (kind.REQUEST, "", "app", "ReleaseIgnored", change.NONE),
        (kind.REQUEST, "a", "app", "Allocated", change.ADD),
        (kind.APP, "app", "root.new", "Starting", change.SET),
        (kind.REQUEST, "a", "app", "Released", change.REMOVE),
        (kind.APP, "app", "root.new", "Completing", change.SET),
        (kind.APP, "app", "root.new", "RemoveRequested", change.REMOVE),
        (kind.APP, "app", "root.new", "Completed", change.SET),
        (kind.QUEUE, "root.new", "root", "Removed", change.REMOVE),
    ]
    assert [(state.applicartionID, state.allocationKey, state.state) for state in states] == [
        ("app", "a", answers.SCHEDULED)
    ]
    assert events[0].timestampNano == 1000 * 10**9
    assert all(event.message for event in events)


def test_events_of_nodes_and_of_what_goes_with_an_application() -> None:
    rm = Client(observed=True).node("n1", 10).application().ask("a", 20, 3).node("n2", action=NodeInfo.DRAIN_NODE)
    for action in (NodeInfo.UPDATE, NodeInfo.DRAIN_NODE, NodeInfo.DRAIN_TO_SCHEDULABLE, NodeInfo.DECOMISSION):
        rm.node("n1", action=action)
    rm.remove()
    events, _ = rm.observed()
    told = [(event.objectID, event.groupID, event.reason) for event in events if event.type == answers.NODE]
    reasons = ("Accepted", "Rejected", "Updated", "Draining", "Schedulable", "Removed")
    assert told == [("n2" if reason == "Rejected" else "n1", "default", reason) for reason in reasons]
    assert [event.reason for event in events if event.objectID == "a"] == ["AskAccepted", "AskReleased"]
    assert all(event.message for event in events)


def test_after_so_many_events_one_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "EVENTS_MAX", 3)
    rm = Client(observed=True)
    for n in range(10):
        rm.node(f"n{n}", 1)
    events, _ = rm.observed()
    assert [event.objectID for event in events] == ["n0", "n1", "n2", ""]
    assert "7 more" in events[3].message
    assert EVENTS_MAX == 1000


def test_nothing_is_observed_unless_it_is_wanted() -> None:
    rm = Client().node("n1", 10).application().ask()
    assert rm.observed() == ([], [])


def test_a_container_state_is_told_when_it_changes_every_ten_seconds_at_most() -> None:
    rm = Client(observed=True).node("n1", 10).application().ask("a", 20)
    assert [state.state for state in rm.observed()[1]] == [answers.FAILED]
    assert rm.run(3 * LOOK_S).observed()[1] == []
    rm.node("n2", 15).run(0.5)
    assert [state.reason for state in rm.observed()[1]] == []
    (state,) = rm.run(LOOK_S).observed()[1]
    assert "15 vcore" in state.reason
    rm.node("n3", 20).run()
    assert [state.state for state in rm.observed()[1]] == [answers.SCHEDULED]


def kept(rm: Client) -> int:
    """How many nodes are kept for asks: such a one is not used for what would fit there."""
    partition = rm.machine._rms[rm.rm_id].bookings.partitions["default"]
    return len(partition.scheduler.group("default").reserved.by_job)


def test_each_repeat_of_an_ask_has_a_node_kept_for_it() -> None:
    rm = Client()
    for name in ("n1", "n2", "n3", "n4"):
        rm.node(name, 10)
    rm.application().ask("old", 6, 4).ask("a", 10, 3).run(3.0)
    assert kept(rm) == 3
    rm.application("late").ask("small", 4, 4, applicationID="late")
    assert [item.allocationKey for item in rm.new()] == ["old"] * 4 + ["small"]
    for uuid in ("u1", "u2", "u3", "u4"):
        rm.release(uuid)
    new = [item.allocationKey for field, item in rm.items("allocations") if field == "new"]
    assert sorted(new) == ["a", "a", "a", "small"]
    assert kept(rm) == 0


def test_the_repeats_of_an_ask_that_is_released_keep_no_nodes() -> None:
    rm = Client().node("n1", 10).node("n2", 10).application().ask("old", 6, 2).ask("a", 10, 9).run(3.0)
    assert kept(rm) == 2
    rm.release_ask("a").ask("b", 4, 2).run()
    assert (kept(rm), rm.used()) == (0, {"vcore": 20})


def test_an_ask_for_which_a_node_is_kept_is_reserved() -> None:
    rm = Client(observed=True).node("n1", 10).application().ask("a", 6).run()
    rm.observed()
    rm.ask("b", 6).run(RESERVE_AFTER_S + LOOK_S)
    states = [state for state in rm.observed()[1] if state.allocationKey == "b"]
    assert [state.state for state in states] == [answers.FAILED, answers.RESERVED]
    assert "node n1 is kept for it" in states[-1].reason
    rm.release("u1").run(LOOK_S)
    assert [state.state for state in rm.observed()[1]] == [answers.SCHEDULED]


def test_so_many_container_states_are_looked_at_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookings, "LOOKS_MAX", 3)
    rm = Client(observed=True).application()
    for n in range(7):
        rm.ask(f"a{n}")
    in_one_turn(rm.world)
    assert rm.world.machine.next_wake_s == 0.0
    assert len(rm.observed()[1]) <= 7
    assert rm.world.machine.next_wake_s > rm.world.now_s
    assert LOOKS_MAX == 100


# ---- what is remembered


def test_constraints_are_read_once() -> None:
    assert requests._constraint.cache_info().maxsize == CONSTRAINTS_CACHED_MAX


def test_resources_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESOURCES_KNOWN_MAX", 3)
    reader = tables.Quantities()
    first = reader.read(resource({"vcore": 1, "memory": 0}))
    assert reader.read(resource({"vcore": 1, "memory": 0})) is first
    assert first.amounts == (("vcore", 1),)
    for n in range(2, 5):
        reader.read(resource(n))
    assert len(reader._known) <= 3
    assert RESOURCES_KNOWN_MAX == 4096


def test_heads_of_an_application_are_bounded() -> None:
    rm = Client().node("n1", 1000).application()
    for n in range(HEADS_MAX + 2):
        rm.ask(f"a{n}", n + 1)
    assert [item.resourcePerAlloc.resources["vcore"].value for item in rm.new()] == list(range(1, HEADS_MAX + 3))
