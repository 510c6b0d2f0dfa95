"""A J of mechanism `none`: as Flux's client writes it, there and back, and what is wrong with others."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.jobspec import unwrap, wrap
from fluxsched.errors import InvalidValue

RECORDED = "dmVyc2lvbgBpMQB1c2VyaWQAaTAAbWVjaGFuaXNtAHNub25lAA==.eyJ2ZXJzaW9uIjogMX0=.none"
"""The header as `flux submit` of 0.88 sent it for user 0; the payload is cut."""


def _signed(header: str, payload: str = "e30=", signature: str = "none") -> str:
    encoded = base64.b64encode(header.replace("|", "\0").encode()).decode()
    return f"{encoded}.{payload}.{signature}"


def test_what_flux_sends_is_read() -> None:
    assert unwrap(RECORDED) == (b'{"version": 1}', 0)


def test_ours_is_what_flux_would_send() -> None:
    assert wrap(b'{"version": 1}', 0) == RECORDED


@given(st.binary(max_size=200).filter(lambda data: not data.endswith(b"\0")), st.integers(0, 0xFFFFFFFF))
def test_there_and_back(payload: bytes, userid: int) -> None:
    assert unwrap(wrap(payload, userid)) == (payload, userid)


def test_an_unsigned_jobspec_names_no_user() -> None:
    assert unwrap(' {"version": 1}') == (b' {"version": 1}', None)


def test_the_keys_of_the_header_have_no_order() -> None:
    assert unwrap(_signed("mechanism|snone|userid|i7|version|i1|")).userid == 7


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "1 parts"),
        ("a.b", "2 parts"),
        ("!.e30=.none", "header of J is not base64"),
        (_signed("version|i1|userid|i0|mechanism|snone|", payload="*"), "payload of J is not base64"),
        (_signed("version|i1|userid"), "pairs"),
        (_signed("version|i1|userid|i0|"), "no text 'mechanism'"),
        (_signed("version|i1|userid|i0|mechanism|smunge|"), "'munge'"),
        (_signed("version|i1|userid|i0|mechanism|snone|", signature="c2ln"), "'none', which is not supported"),
        (_signed("version|i2|userid|i0|mechanism|snone|"), "version 2"),
        (_signed("version|i1|mechanism|snone|"), "no integer 'userid'"),
        (_signed("version|i1|userid|i-1|mechanism|snone|"), "no integer 'userid'"),
        (_signed("version|i1|userid|s1|mechanism|snone|"), "no integer 'userid'"),
    ],
)
def test_what_is_wrong_is_named(text: str, part: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        unwrap(text)
    assert part in str(raised.value)
    assert "unsigned" in str(raised.value)
