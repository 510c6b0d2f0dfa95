"""Addresses of services: what they may look like, and their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.yunikorn.wire import PORT_MAX, SOCKET_PATH_BYTES_MAX, Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/s", Address(path=Path("/run/s"))),
        ("127.0.0.1:0", Address(host="127.0.0.1")),
        ("[::1]:9080", Address(host="[::1]", port=9080)),
        (f"scheduler.example.org:{PORT_MAX}", Address(host="scheduler.example.org", port=PORT_MAX)),
    ],
)
def test_addresses_are_read_and_printed(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "tcp://host:1", "a b:1", "::1:1", "host:x", "host:123456"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not an address: write unix:PATH or HOST:PORT"):
        parse_address(text)


def test_limits_of_the_system_are_named() -> None:
    with pytest.raises(LimitExceeded, match=f"limit of {PORT_MAX}"):
        parse_address(f"host:{PORT_MAX + 1}")
    longest = "/" + "x" * (SOCKET_PATH_BYTES_MAX - 1)
    assert parse_address(f"unix:{longest}") == Address(path=Path(longest))
    with pytest.raises(LimitExceeded, match=f"{SOCKET_PATH_BYTES_MAX}: name a shorter one"):
        parse_address(f"unix:{longest}x")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("[::]", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_loopback_is_what_this_machine_alone_reaches(host: str, is_loopback: bool) -> None:
    assert Address(host=host, port=1).is_loopback is is_loopback
