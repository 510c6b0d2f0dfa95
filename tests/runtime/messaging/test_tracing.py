"""Lines of `start --trace`: as wide as the terminal is at the time, else of a fixed length at most."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import REQUEST, Message
from fluxsched.runtime.messaging.tracing import HIDDEN, LINE_CHARS_MAX, content, printer

LONG = Message(REQUEST, "resource.drain", codec.pack({"reason": "x" * 1000}))


def test_a_line_is_as_wide_as_the_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "r") as screen, os.fdopen(theirs, "w") as out:
        trace = printer(out)
        for columns in (80, 100):
            fcntl.ioctl(out, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            trace("in", LONG)
            line = screen.readline().rstrip("\n")
            assert (len(line), line[-1]) == (columns, "…")


def test_without_a_terminal_a_line_has_a_limit_and_short_ones_are_whole() -> None:
    out = io.StringIO()
    trace = printer(out, ("resource.",))
    trace("in", LONG)
    trace("in", Message(REQUEST, "resource.drain", codec.pack({"reason": "x"})))
    trace("in", Message(REQUEST, "job-manager.list", None))
    long, short = out.getvalue().splitlines()
    assert (len(long), long[-1]) == (LINE_CHARS_MAX, "…")
    assert short.endswith('{"reason":"x"}')


def test_environments_and_task_data_are_left_out() -> None:
    def said(topic: str, payload: dict[str, object]) -> str:
        return content(Message(REQUEST, topic, codec.pack(payload)))

    jobspec = {"environment": {"TOKEN": "xyzzy"}, "tasks": [{"command": ["a"]}]}
    shown = said("job-manager.submit", {"jobspec": jobspec})
    assert shown == f'{{"jobspec":{{"environment":"{HIDDEN}","tasks":[{{"command":["a"]}}]}}}}'
    updates = {"updates": {"attributes.system.environment.TOKEN": "xyzzy", "attributes.system.duration": 1}}
    assert "xyzzy" not in said("job-manager.update", updates)
    assert "duration" in said("job-manager.update", updates)
    for topic, payload in (
        ("job-ingest.submit", {"J": "xyzzy"}), ("job-manager.getattr", {"jobspec": "xyzzy"}),
        ("job-manager.input", {"data": "xyzzy"}), ("shell-123.stdin", {"data": "xyzzy"}),
    ):  # fmt: skip
        assert "xyzzy" not in said(topic, payload)


def test_messages_of_local_peers_are_read_too() -> None:
    assert content(Message(REQUEST, "attr.get", b'{"name":"rank"}\0')) == '{"name":"rank"}'
    assert content(Message(REQUEST, "attr.get", b"{oops")) == "5 bytes"
