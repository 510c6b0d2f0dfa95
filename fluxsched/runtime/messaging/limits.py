"""What one peer may have open and ask for, so that none takes what the others need.

Law: reaching a limit is answered with the value, the limit and what to do, and hurts no other peer. What is no message
at all is answered a few times, and then ends the connection. The owner's requests have no rate: a client that submits
20,000 jobs in a second and a half is what an instance is for, peers are handled by turns, and what is not handled yet
waits in the sender's own queue. Bytes are limited by the transports (`MESSAGE_BYTES_MAX` and their like).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fluxsched.errors import LimitExceeded

IN_FLIGHT_PEER_MAX = 200_000
"""Unanswered requests of one peer: a client may have 20,000 submits and as many waits open, five times over."""
STREAMS_PEER_MAX = 65_536
"""Open streams of one peer: Flux's clients follow each of their jobs by a stream of its own."""
SERVICES_PEER_MAX = 64
"""Services one peer may register: module processes need two or three."""
PEERS_MAX = 32_768
"""Peers of one instance: an agent for each host of a large machine, and people's commands beside them."""
GUEST_RATE_PER_S = 500
"""Requests of a guest, each counted, also in a bundle: his script may list, submit and wait all day."""
GUEST_BURST = 20_000
"""Requests that a guest may send at once: as many as one command submits."""
MALFORMED_RATE_PER_S = 1
MALFORMED_BURST = 32
"""Messages that are none, of one peer: what a person tries out by hand is explained, a flood ends the connection."""


class TokenBucket:
    """Lets `burst` through at once, and `rate_per_s` in the long run."""

    __slots__ = ("_at_s", "_burst", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: int, burst: int) -> None:
        self._rate_per_s = float(rate_per_s)
        self._burst = self._tokens = float(burst)
        self._at_s = 0.0

    def take(self, now_s: float) -> bool:
        """Take one, if there is one."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait_s(self) -> float:
        """How long until there is one, from the last `take` on."""
        return max(0.0, 1.0 - self._tokens) / self._rate_per_s


class PeerLimits:
    """The rates of one peer. `is_guest`: it may look, and have jobs of its own. `refusal`: why it is not served."""

    __slots__ = ("_malformed", "_refusal", "_requests")

    def __init__(self, is_guest: bool, refusal: str | None) -> None:
        self._refusal = refusal
        self._requests = TokenBucket(GUEST_RATE_PER_S, GUEST_BURST) if is_guest else None
        self._malformed: TokenBucket | None = None

    def check_request(self, in_flight: int, monotonic_s: Callable[[], float]) -> None:
        """To be asked for each request; with it so many are in flight. Raises LimitExceeded (EMFILE, EAGAIN)."""
        if self._refusal is not None:
            raise LimitExceeded(self._refusal, errno.EMFILE)
        if in_flight > IN_FLIGHT_PEER_MAX:
            raise LimitExceeded(
                f"{in_flight - 1} requests of this peer wait for answers, the limit is {IN_FLIGHT_PEER_MAX}: "
                "wait for some of them",
                errno.EMFILE,
            )
        bucket = self._requests
        if bucket is not None and not bucket.take(monotonic_s()):
            raise LimitExceeded(
                f"more than {GUEST_BURST} requests at once or {GUEST_RATE_PER_S} a second, the limit for guests: "
                f"wait {bucket.wait_s():.3f} s and send this one again",
                errno.EAGAIN,
            )

    def may_err(self, now_s: float) -> bool:
        """To be asked for each message that is none: whether it is answered, and no more."""
        if self._malformed is None:
            self._malformed = TokenBucket(MALFORMED_RATE_PER_S, MALFORMED_BURST)
        return self._malformed.take(now_s)


def flooding() -> str:
    """Why a peer is cut off that sends garbage."""
    return f"more than {MALFORMED_BURST} messages that are none: is this a client of Flux or fluxsched?"


def check_streams(count: int) -> None:
    """Raises LimitExceeded (EMFILE) if a peer with so many streams may open no further one."""
    if count >= STREAMS_PEER_MAX:
        raise LimitExceeded(
            f"{count} streams of this peer are open, the limit is {STREAMS_PEER_MAX}: cancel some, or follow many jobs "
            "by one stream (job-manager.watch, job-manager.wait-all)",
            errno.EMFILE,
        )


def check_services(count: int) -> None:
    """Raises LimitExceeded (EMFILE) if a peer with so many services may register no further one."""
    if count >= SERVICES_PEER_MAX:
        raise LimitExceeded(
            f"{count} services are registered by this peer, the limit is {SERVICES_PEER_MAX}: remove one first",
            errno.EMFILE,
        )


def too_many_peers(count: int) -> str | None:
    """Why a further peer is not served where there are so many; None if there is room."""
    if count < PEERS_MAX:
        return None
    return f"{count} peers are connected, the limit is {PEERS_MAX}: end some clients, then connect again"
