"""The messages between an instance and its keeper: read as they were written, and by a newer reader."""

from __future__ import annotations

import msgspec
import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import RemoteProtocolError
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.transport.base import PARTS_MAX


def test_messages_of_a_turn_travel_together_and_in_order() -> None:
    said = [msg.SignalJob(jobid, 15, 2.5) for jobid in range(PARTS_MAX + 1)]
    frames = list(msg.packed(said))
    assert [len(one) for one in frames] == [PARTS_MAX, 1]
    assert [one for each in frames for one in msg.from_instance(each)] == said


def test_each_message_is_read_as_it_was_written() -> None:
    reports = [
        msg.KeeperWelcome(1, 7, [msg.HeldJob(3, 0, True)]),
        msg.JobSpawned(1, 3, {"pid": 8}),
        msg.JobFinished(2, 3, 256, {"wall_s": 1.5}),
        msg.ProcessesCleared({3: "no process of the job was left"}),
    ]
    assert [one for each in msg.packed(reports) for one in msg.from_keeper(each)] == reports


def test_a_jobspec_is_an_object_on_the_wire() -> None:
    jobspec = Jobspec.from_command(["true"])
    ((frame,),) = msg.packed([msg.StartJob(1, 0, msg.packed_jobspec(jobspec), {})])
    assert msgspec.msgpack.decode(frame)["jobspec"] == jobspec.raw


def test_keys_of_a_newer_version_are_ignored() -> None:
    frame = msgspec.msgpack.encode({"type": "stored", "serial": 4, "of": "later"})
    assert msg.from_instance([frame]) == [msg.Stored(4)]


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgspec.msgpack.encode({"type": "stored"}), b"\x91" * 5000])
def test_what_is_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^keeper: "):
        msg.from_instance([frame])
