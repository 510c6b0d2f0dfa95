"""PMI-1 as RFC 13 has it: one key-value space and one barrier a job, every limit, and what no line may do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.protocol import pmi
from fluxsched.protocol.pmi import (
    ABORT_NOTE_MAX,
    KEY_MAX,
    NAME_MAX,
    VALUE_MAX,
    Failed,
    Fence,
    Hangup,
    PmiEffect,
    PmiReply,
    PmiServer,
)

NAME = "kvs"


def server(*ntasks: int) -> PmiServer:
    return PmiServer(NAME, ntasks or (2,))


def say(one: PmiServer, rank: int, text: str) -> str:
    """The only answer, which is the sender's."""
    (answer,) = one.receive(rank, f"{text}\n".encode())
    assert isinstance(answer, PmiReply)
    assert answer.rank == rank
    return answer.line.decode()


def test_the_words_of_the_rfc() -> None:
    one = server(2, 2)
    assert say(one, 1, "cmd=init pmi_version=1 pmi_subversion=1") == (
        "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"
    )
    assert say(one, 1, "cmd=init pmi_version=2 pmi_subversion=0").endswith("pmi_version=1 pmi_subversion=1\n")
    assert say(one, 1, "cmd=get_maxes") == (
        f"cmd=maxes rc=0 kvsname_max={NAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX}\n"
    )
    assert say(one, 1, "cmd=get_universe_size") == "cmd=universe_size rc=0 size=4\n"
    assert say(one, 1, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"
    assert say(one, 1, "cmd=get_my_kvsname") == "cmd=my_kvsname rc=0 kvsname=kvs\n"
    assert say(one, 1, "cmd=put kvsname=kvs key=a value=1=2 3") == "cmd=put_result rc=0\n"
    assert say(one, 0, "  key=a   kvsname=kvs other=x cmd=get") == "cmd=get_result rc=0 value=1=2 3\n"
    assert say(one, 0, "cmd=get kvsname=kvs key=PMI_process_mapping") == (
        "cmd=get_result rc=0 value=(vector,(0,2,2))\n"
    )
    assert say(one, 1, "cmd=finalize") == "cmd=finalize_ack rc=0\n"


def test_the_barrier_lets_all_go_at_once() -> None:
    one = server(3)
    assert one.receive(2, b"cmd=barrier_in\n") == one.receive(0, b"cmd=barr") == []
    assert one.receive(0, b"ier_in\n") == []
    assert say(one, 0, "cmd=barrier_in") == "cmd=barrier_out rc=-1 msg=already_in_the_barrier\n"
    assert one.receive(1, b"cmd=barrier_in\n") == [PmiReply(rank, b"cmd=barrier_out rc=0\n") for rank in range(3)]
    assert one.receive(1, b"cmd=barrier_in\n") == []


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("", "cmd=error rc=-1 msg=no_cmd"),
        ("hello", "cmd=error rc=-1 msg=not_key_and_value"),
        ("cmd=dance", "cmd=error rc=-1 msg=unknown_command"),
        ("cmd=init", "cmd=response_to_init rc=-1 msg=no_pmi_version"),
        ("cmd=put kvsname=kvs key=a", "cmd=put_result rc=-1 msg=no_value"),
        ("cmd=put kvsname=other key=a value=1", "cmd=put_result rc=-1 msg=unknown_kvsname"),
        ("cmd=put kvsname=kvs key=PMI_x value=1", "cmd=put_result rc=-1 msg=key_is_reserved"),
        (f"cmd=put kvsname=kvs key={'k' * KEY_MAX} value=1", "cmd=put_result rc=-1 msg=key_of_64_bytes_exceeds_63"),
        (
            f"cmd=put kvsname=kvs key=k value={'v' * VALUE_MAX}",
            "cmd=put_result rc=-1 msg=value_of_1024_bytes_exceeds_1023",
        ),
        ("cmd=put kvsname=kvs key=k value=\N{GREEK SMALL LETTER ALPHA}", "cmd=error rc=-1 msg=not_printable_ASCII"),
        ("cmd=barrier_in\ncmd=put kvsname=kvs key=a value=1", "cmd=put_result rc=-1 msg=in_the_barrier"),
        ("cmd=get kvsname=kvs", "cmd=get_result rc=-1 msg=no_key"),
        ("cmd=get kvsname=kvs key=a", "cmd=get_result rc=-1 msg=key_not_found"),
        ("cmd=publish_name service=a port=b", "cmd=publish_result rc=-1 msg=not_supported"),
        ("mcmd=spawn\nnprocs=1\nexecname=a\nendcmd", "cmd=spawn_result rc=-1 msg=spawn_is_not_supported errcodes=-1"),
    ],
)
def test_a_wrong_line_is_that_tasks_error(line: str, answer: str) -> None:
    one = server()
    assert say(one, 0, line) == f"{answer}\n"
    assert say(one, 1, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"


def test_a_line_without_an_end_and_a_spawn_without_an_end_are_cut_off() -> None:
    (cut,) = server().receive(0, b"x" * (pmi.LINE_BYTES_MAX + 1))
    assert isinstance(cut, Hangup)
    (cut,) = server().receive(0, b"x" * (pmi.LINE_BYTES_MAX + 1) + b"\n")
    assert isinstance(cut, Hangup)
    (cut,) = server().receive(0, b"mcmd=spawn\n" + b"arg=1\n" * pmi.SPAWN_LINES_MAX)
    assert isinstance(cut, Hangup)


def test_the_space_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmi, "KEYS_MAX", 3)  # the mapping is one of them
    monkeypatch.setattr(pmi, "SPACE_BYTES_MAX", 10)
    one = server()
    put = "cmd=put kvsname=kvs key={} value={}"
    assert say(one, 0, put.format("a", "1234")) == "cmd=put_result rc=0\n"
    assert say(one, 0, put.format("b", "12345")) == "cmd=put_result rc=-1 msg=more_than_10_bytes_in_all\n"
    assert say(one, 0, put.format("a", "12")) == "cmd=put_result rc=0\n", "put anew: it needs less"
    assert say(one, 0, put.format("b", "12345")) == "cmd=put_result rc=0\n"
    assert say(one, 0, put.format("c", "")) == "cmd=put_result rc=-1 msg=more_than_3_keys\n"


@pytest.mark.parametrize(
    ("ntasks", "mapping"),
    [((4,), "(vector,(0,1,4))"), ((2, 2, 4, 4), "(vector,(0,2,2),(2,2,4))"), ((1, 0, 1), "(vector,(0,1,1),(2,1,1))"),
     ((1, 2) * 200, "")],
)  # fmt: skip
def test_the_process_mapping(ntasks: tuple[int, ...], mapping: str) -> None:
    assert pmi.process_mapping(ntasks) == mapping


def test_the_text_of_an_abort_has_a_limit() -> None:
    (failed,) = server(1).receive(0, f"cmd=abort error_msg={'x' * 5000}\n".encode())
    assert failed.note.count("x") == ABORT_NOTE_MAX


def test_abort_fails_the_program_once() -> None:
    one = server()
    assert one.receive(1, b"cmd=abort exitcode=3\n") == [Failed(1, "called MPI_Abort with exit code 3", exit_code=3)]
    assert one.receive(0, b"cmd=abort\n") == []


def test_who_leaves_without_finalize_fails_the_program() -> None:
    one = server()
    one.receive(0, b"cmd=init pmi_version=1 pmi_subversion=1\n")
    assert one.ended(0) == [Failed(0, "left the MPI program without MPI_Finalize", left=True)]
    assert one.ended(0) == one.receive(0, b"cmd=get_appnum\n") == []


@pytest.mark.parametrize("first", ["left", "waits"])
def test_a_barrier_that_one_task_can_never_enter_fails_the_program(first: str) -> None:
    one = server(3)
    note = "has left the MPI program, and tasks 0,2 wait for it in a barrier"
    if first == "waits":
        assert one.receive(0, b"cmd=barrier_in\n") == one.receive(2, b"cmd=barrier_in\n") == []
        assert one.ended(1) == [Failed(1, note, left=True)]
    else:
        one.receive(1, b"cmd=init pmi_version=1\ncmd=finalize\n")
        assert one.ended(1) == []
        (failed,) = one.receive(0, b"cmd=barrier_in\n")
        assert failed == Failed(1, note.replace("tasks 0,2 wait", "task 0 waits"), left=True)


_words = st.sampled_from([
    "cmd=init", "pmi_version=1", "cmd=put", "cmd=get", "kvsname=kvs", "key=a", "value=b c", "cmd=barrier_in",
    "cmd=abort", "cmd=finalize", "mcmd=spawn", "endcmd", "cmd=get_maxes", "=", "\t", "cmd=", "exitcode=-1",
    "\n", "\n", "\n",
])  # fmt: skip
_data = st.one_of(st.binary(max_size=40), st.lists(_words, max_size=8).map(" ".join).map(str.encode))


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), _data)), max_size=40))
def test_no_bytes_of_tasks_break_the_server(steps: list[tuple[int, bytes | None]]) -> None:
    one = server(1, 2)
    effects: list[PmiEffect] = []
    for rank, data in steps:
        effects += one.ended(rank) if data is None else one.receive(rank, data)
    assert sum(isinstance(effect, Failed) for effect in effects) <= 1
    for effect in effects:
        if isinstance(effect, PmiReply):
            assert effect.line.startswith(b"cmd=")
            assert effect.line.endswith(b"\n")
            assert effect.line.count(b"\n") == 1
            assert effect.line.isascii()


# Several hosts: a server for each, and what they tell each other.


def part(own: str, *ntasks: int) -> PmiServer:
    return PmiServer(NAME, ntasks, Idset.parse(own))


PUT = "cmd=put kvsname=kvs key={} value={}"
GET = "cmd=get kvsname=kvs key={}"


def test_a_task_that_has_left_after_a_barrier_of_several_hosts_does_not_fail_that_one() -> None:
    one = part("0", 1, 1)
    assert one.receive(0, b"cmd=barrier_in\n") == [Fence(1, {})]
    assert one.left_elsewhere(3, "host b") == one.left_elsewhere(2, "task 1") == one.left_elsewhere(4, "host c") == []
    assert one.fence_done(1, {}) == [PmiReply(0, b"cmd=barrier_out rc=0\n")]
    assert [effect.rank for effect in one.receive(0, b"cmd=barrier_in\n") if isinstance(effect, Failed)] == [None]


def test_a_barrier_of_several_hosts_waits_for_all_of_them() -> None:
    one = part("2-3", 2, 2)
    assert say(one, 2, PUT.format("a", "1")) == "cmd=put_result rc=0\n"
    assert say(one, 3, GET.format("a")) == "cmd=get_result rc=0 value=1\n", "on this host it is known at once"
    assert say(one, 2, "cmd=get_universe_size") == "cmd=universe_size rc=0 size=4\n"
    assert one.receive(3, b"cmd=barrier_in\n") == one.fence_done(1, {"b": "2"}) == []
    assert one.receive(2, b"cmd=barrier_in\n") == [Fence(1, {"a": "1"})]
    assert one.fence_done(0, {}) == one.fence_done(2, {}) == []
    assert one.fence_done(1, {"a": "3", "b": "2"}) == [PmiReply(rank, b"cmd=barrier_out rc=0\n") for rank in (2, 3)]
    assert one.fence_done(1, {"a": "4"}) == [], "a repeated answer is passed over"
    assert say(one, 2, GET.format("b")) == "cmd=get_result rc=0 value=2\n"
    assert say(one, 2, GET.format("a")) == "cmd=get_result rc=0 value=3\n"
    assert say(one, 2, PUT.format("a", "")) == "cmd=put_result rc=0\n"
    assert say(one, 2, GET.format("a")) == "cmd=get_result rc=0 value=\n"
    assert one.receive(3, b"cmd=barrier_in\n") == []
    assert one.receive(2, b"cmd=barrier_in\n") == [Fence(2, {"a": ""})]


def test_the_space_is_shared_among_hosts_by_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmi, "KEYS_MAX", 9)  # the mapping is one of them
    monkeypatch.setattr(pmi, "SPACE_BYTES_MAX", 40)
    one = part("1-2", 1, 2, 1)
    for key in "abcd":
        assert say(one, 1, PUT.format(key, "1")) == "cmd=put_result rc=0\n"
    assert say(one, 2, PUT.format("e", "")) == "cmd=put_result rc=-1 msg=more_than_5_keys\n"
    assert say(one, 2, PUT.format("a", "x" * 14)) == "cmd=put_result rc=-1 msg=more_than_20_bytes_in_all\n"
    assert say(one, 2, PUT.format("a", "x" * 13)) == "cmd=put_result rc=0\n"
    one.receive(1, b"cmd=barrier_in\n")
    one.receive(2, b"cmd=barrier_in\n")
    one.fence_done(1, {"a": "x" * 13, "b": "1", "c": "1", "d": "1", "e": "", "f": "1" * 9})
    assert say(one, 1, PUT.format("g", "")) == "cmd=put_result rc=0\n"
    assert say(one, 1, PUT.format("h", "")) == "cmd=put_result rc=-1 msg=more_than_8_keys\n"
    assert say(one, 1, PUT.format("e", "1234")) == "cmd=put_result rc=-1 msg=more_than_35_bytes_in_all\n"
    assert say(one, 1, PUT.format("e", "123")) == "cmd=put_result rc=0\n"
    assert say(one, 1, PUT.format("f", "")) == "cmd=put_result rc=0\n", "what is there already needs no room"


def test_a_task_that_leaves_is_news_for_the_other_hosts_once() -> None:
    one = part("0-1", 2, 1)
    one.receive(0, b"cmd=init pmi_version=1\ncmd=finalize\n")
    assert one.ended(0) == [Fence(1, {}, 0)]
    assert one.ended(1) == []
    other = part("0-1", 2, 1)
    assert other.left_elsewhere(1, "task 2 (exited 1)") == other.ended(0) == []


@pytest.mark.parametrize("first", ["left", "waits"])
def test_a_barrier_that_a_task_of_another_host_can_never_enter_fails_the_program(first: str) -> None:
    one = part("0-1", 2, 1)
    failed = [Failed(None, "task 2 has left the MPI program, and task 0 waits for it in a barrier", left=True)]
    if first == "left":
        assert one.left_elsewhere(1, "task 2") == []
        assert one.receive(0, b"cmd=barrier_in\n") == failed
    else:
        assert one.receive(0, b"cmd=barrier_in\n") == []
        assert one.left_elsewhere(1, "task 2") == failed
    assert one.left_elsewhere(1, "host b") == one.receive(1, b"cmd=barrier_in\n") == []
