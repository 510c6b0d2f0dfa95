"""Which response belongs to which request: tags, streams, strays, the limit."""

from __future__ import annotations

import errno

import pytest

from fluxsched.errors import LimitExceeded, RemoteProtocolError, RPCError
from fluxsched.protocol import framing, sessions
from fluxsched.protocol.framing import make_error, make_request, make_response
from fluxsched.protocol.messages.common import CancelRequest
from fluxsched.protocol.sessions import Answer, Calls, tell


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_one_response(calls):
    one, two = (calls.start("attr.get", b"\x80", False, token) for token in ("one", "two"))
    assert one.matchtag != two.matchtag
    assert 0 not in (one.matchtag, two.matchtag)
    assert calls.receive(make_response(two, b"\x81")) == Answer("two", b"\x81", None, True)
    assert calls.receive(make_response(one)) == Answer("one", None, None, True)
    assert len(calls) == 0


def test_error_response(calls):
    request = calls.start("attr.get", b"\x80", token="t")
    answer = calls.receive(make_error(request, errno.ENOENT, "no such attribute"))
    assert (answer.token, answer.done, answer.payload) == ("t", True, None)
    assert isinstance(answer.error, RPCError)
    assert (answer.error.errnum, str(answer.error)) == (errno.ENOENT, "no such attribute")


def test_error_without_text_still_says_something(calls):
    request = calls.start("attr.get")
    answer = calls.receive(make_error(request, 5))
    assert str(answer.error) == "attr.get: error 5"


@pytest.mark.parametrize("flagged", [True, False])
def test_a_stream_ends_with_an_error_only(calls, flagged):
    request = calls.start("resource.journal", None, True, "s")
    assert request.flags & framing.STREAMING
    response = make_response(request, b"\x80")
    if not flagged:
        response.flags &= ~framing.STREAMING
    assert calls.receive(response) == Answer("s", b"\x80", None, False)
    end = calls.receive(make_error(request, errno.ENODATA))
    assert (end.done, end.error.errnum) == (True, errno.ENODATA)
    with pytest.raises(RemoteProtocolError, match="no call"):
        calls.receive(response)


def test_cancel_says_which_stream(calls):
    request = calls.start("resource.journal", None, True)
    cancel = calls.cancel(request.matchtag, request.topic)
    assert (cancel.topic, cancel.matchtag) == ("resource.journal-cancel", 0)
    assert cancel.flags & framing.NORESPONSE
    assert framing.unpack(cancel.payload, CancelRequest) == CancelRequest(request.matchtag)
    assert len(calls) == 1


def test_strays_are_the_peers_fault(calls):
    request = calls.start("attr.get")
    strays = [
        make_response(make_request("attr.get", matchtag=request.matchtag + 1)),
        make_response(make_request("attr.set", matchtag=request.matchtag)),
        make_request("attr.get", matchtag=request.matchtag),
    ]
    for stray in strays:
        with pytest.raises(RemoteProtocolError, match="it matches no call"):
            calls.receive(stray)
    assert len(calls) == 1


def test_tags_wrap_and_skip_those_in_use(calls):
    first, second = calls.start("a.b"), calls.start("a.b")
    calls.receive(make_response(first))
    calls._last = sessions.MATCHTAG_MAX - 1  # four billion calls later
    tags = [calls.start("a.b").matchtag for _ in range(3)]
    assert tags == [sessions.MATCHTAG_MAX, 1, 3]
    assert second.matchtag == 2


def test_limit():
    assert Calls()._in_flight_max == sessions.IN_FLIGHT_MAX == 100_000
    calls = Calls(in_flight_max=2)
    calls.start("a.b")
    calls.start("a.b")
    with pytest.raises(LimitExceeded, match=r"a\.c: 2 calls wait.*limit 2"):
        calls.start("a.c")


def test_tell_wants_no_response():
    message = tell("instance.goodbye", None)
    assert message.flags & framing.NORESPONSE
    assert message.matchtag == 0
