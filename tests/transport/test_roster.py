"""The roster alone: what it concludes from each order in which messages and the monitor's events can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fluxsched.transport.base import Arrived, Lost
from fluxsched.transport.zeromq import CLOSE_SETTLE_S, Roster

MADE, OTHER = b"\0AAAA", b"\0BBBB"


@pytest.fixture
def fd() -> Iterator[int]:
    """A descriptor that stays open: nothing is concluded from its being closed."""
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


def closed_fd() -> int:
    read, write = os.pipe()
    os.close(write)
    os.close(read)
    return read


def test_a_peer_is_lost_once_its_descriptor_is_closed_and_the_router_is_dry() -> None:
    read, write = os.pipe()
    roster = Roster()
    roster.accepted(read)
    peer = roster.adopt(MADE, False, read, 0.0)
    roster.disconnected(read, 0.0)
    roster.settle(0.0)
    assert roster.losses([], True, 9) == [], "the I/O thread may not have handed over the last messages"
    os.close(read)
    roster.settle(0.0)
    assert roster.losses([], False, 9) == []
    assert roster.losses([], True, 9) == [Lost(MADE, "connection closed")]
    assert roster.losses([], True, 9) == []
    assert not roster.by_name
    assert peer.reason
    os.close(write)


def test_the_sender_is_doubtful_where_a_peer_left_unnoticed(fd: int) -> None:
    roster = Roster()
    roster.accepted(fd)
    roster.disconnected(fd, 0.0)
    roster.accepted(fd)
    assert roster.adopt(MADE, False, fd, 0.0).doubtful, "it may be the one that left"
    roster.ran_dry(CLOSE_SETTLE_S + 0.01)
    assert not roster.adopt(OTHER, False, fd, 0.5).doubtful


def test_a_descriptor_accepted_again_was_closed(fd: int) -> None:
    roster = Roster()
    roster.accepted(fd)
    roster.adopt(MADE, False, fd, 0.0)
    roster.disconnected(fd, 0.0)
    roster.accepted(fd)
    roster.settle(0.0)
    assert roster.adopt(MADE, False, fd, 0.0).name == MADE, "its last message, read late"
    assert roster.adopt(OTHER, False, fd, 0.0).reason is None
    assert roster.losses([], True, 9) == [Lost(MADE, "connection closed")]
    roster.disconnected(fd, 0.0)
    roster.settle(CLOSE_SETTLE_S + 1)
    assert roster.losses([], True, 9) == [Lost(OTHER, "connection closed")]


def test_a_first_message_read_after_the_end_makes_a_peer_that_is_ending() -> None:
    fd = closed_fd()
    roster = Roster()
    roster.accepted(fd)
    roster.disconnected(fd, 0.0)
    assert roster.adopt(MADE, False, fd, 0.0).reason == "connection closed"
    roster.settle(0.0)
    assert roster.losses([], True, 9) == [Lost(MADE, "connection closed")]


def test_two_silent_rounds_are_as_good_as_a_dry_router() -> None:
    fd = closed_fd()
    roster = Roster()
    roster.accepted(fd)
    roster.adopt(MADE, False, fd, 0.0)
    roster.disconnected(fd, 0.0)
    roster.settle(0.0)
    noise = [Arrived(OTHER, [])] * 2
    assert roster.losses([*noise, Arrived(MADE, [])], False, 9) == []
    assert roster.losses(noise, False, 9) == []
    assert roster.losses(noise, False, 9) == [Lost(MADE, "connection closed")]


def test_no_more_losses_than_asked() -> None:
    roster = Roster()
    for number in range(3):
        roster.adopt(b"\0000%d" % number, False, closed_fd(), 0.0)
    roster.settle(0.0)
    assert len(roster.losses([], True, 2)) == 2
    assert len(roster.losses([], True, 2)) == 1


def test_a_chosen_identity_on_a_new_generation_is_a_new_peer(fd: int) -> None:
    roster = Roster()
    roster.accepted(fd)
    assert roster.adopt(b"bob", True, fd, 0.0).name == b"bob"
    roster.disconnected(fd, 0.0)
    roster.accepted(fd)
    renamed = roster.adopt(MADE, True, fd, 0.0)
    assert renamed.name == b"bob", "the router renamed the former connection"
    new = roster.adopt(b"bob", True, fd, 0.0)
    assert new.name == b"bob#1"
    assert new.reason is None
    assert roster.adopt(MADE, True, fd, 0.0) is renamed
    roster.settle(0.0)
    assert roster.losses([], True, 9) == [Lost(b"bob", "connection closed")]
    assert roster.by_identity == {b"bob": new}


def test_events_without_peers_leave_nothing_behind(fd: int) -> None:
    roster = Roster()
    for _ in range(3):
        roster.accepted(fd)
        roster.disconnected(fd, 0.0)
    roster.disconnected(fd, 0.0)
    assert not roster.by_name
    assert not roster.ending
