"""queue, module and the instance's own commands; `golden/instance.txt` has what is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fluxsched.errors import FluxschedError, RPCError
from fluxsched.instance.launch import check_start

from ..sites import ANONYMOUS, QUEUES, report


@pytest.mark.parametrize(
    ("args", "topic", "payload"),
    [
        ("enable", "enable", {"enable": True}),
        ("enable batch", "enable", {"enable": True, "name": "batch"}),
        ("disable -q batch", "enable", {"enable": False, "name": "batch"}),
        ("disable --all -m later", "enable", {"enable": False, "all": True, "reason": "later"}),
        ("disable batch being mended", "enable", {"enable": False, "name": "batch", "reason": "being mended"}),
        ("start -a", "start", {"start": True, "all": True}),
        ("stop batch", "start", {"start": False, "name": "batch"}),
        ("stop -q batch being mended", "start", {"start": False, "name": "batch", "reason": "being mended"}),
        ("stop --all being mended", "start", {"start": False, "all": True, "reason": "being mended"}),
    ],
)
def test_queue_changes(cli, args: str, topic: str, payload: dict) -> None:
    done = cli("queue", *args.split(), answers={**QUEUES, f"job-manager.queue-{topic}": {}})
    assert (done.out, done.code, done.calls[-1]) == ("", 0, (f"job-manager.queue-{topic}", payload))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["-m", "being mended"], {"reason": "being mended"}),
        (["--all", "being", "mended"], {"all": True, "reason": "being mended"}),
        (["nosuch"], {"name": "nosuch"}),
        ([""], {"name": ""}),
        (["-q", ""], {"name": ""}),
    ],
)
def test_a_first_word_is_a_queues_name_also_where_the_one_queue_has_none(cli, args: list, named: dict) -> None:
    done = cli("queue", "stop", *args, answers={**ANONYMOUS, "job-manager.queue-start": {}})
    assert done.calls == [("job-manager.queue-start", {"start": False, **named})]


@pytest.mark.parametrize(
    ("args", "request_"),
    [
        ("fifo", {"spec": "fifo"}),
        ("fifo placement=best-fit a=b", {"spec": "fifo:placement=best-fit,a=b"}),
        ("fifo:x=1 y=2", {"spec": "fifo:x=1,y=2"}),
        ("/x/mine.py:o=1", {"spec": "/x/mine.py:o=1"}),
        ("--name two --group a --group b fifo", {"spec": "fifo", "name": "two", "groups": ["a", "b"]}),
    ],
)
def test_module_load(cli, args: str, request_: dict) -> None:
    done = cli("module", "load", *args.split(), answers={"module.load": {"name": "fifo", "pid": 7}})
    assert (done.out, done.calls) == ("", [("module.load", request_)])


def test_module_file_is_sent_absolute(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("module", "load", "./mine.py", "o=1", "--json", answers={"module.load": {"name": "mine", "pid": 7}})
    assert done.calls[0][1] == {"spec": f"{tmp_path}/mine.py:o=1"}
    assert done.out == '{"name": "mine", "pid": 7}\n'


def test_module_remove_and_reload(cli) -> None:
    assert cli("module", "remove", "fifo", answers={"module.remove": {}}).calls == [("module.remove", {"name": "fifo"})]
    assert cli("module", "reload", "fifo", answers={"module.reload": {"pid": 8}}).calls == [
        ("module.reload", {"name": "fifo"})
    ]


def test_ping(cli) -> None:
    done = cli("ping", "-c", "2", "-i", "0", "-p", "3", "resource", answers={"resource.ping": {"route": "a!b"}})
    assert done.calls == [("resource.ping", {"seq": seq, "pad": "ppp"}) for seq in (0, 1)]
    first, second = done.out.splitlines()
    assert first.startswith("resource.ping pad=3 seq=0 time=")
    assert second.endswith(" ms (a!b)")
    found = json.loads(cli("ping", "-c1", "--json", answers={"instance.ping": {"seq": 0}}).out)
    assert found.keys() == {"seq", "time_ms"}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list:
    """What was asked of instance.launch."""
    asked: list = []

    def note(name: str, answer: object):
        def call(*args: object, **named: object) -> object:
            asked.append((name, args, named))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    launch = SimpleNamespace(
        StartOptions=SimpleNamespace,
        check_start=check_start,
        start=note("start", 3),
        start_daemon=note("start_daemon", "ipc:///there"),
        stop=note("stop", "ipc:///there"),
        agent=note("agent", 0),
    )
    monkeypatch.setitem(sys.modules, "fluxsched.instance.launch", launch)
    return asked


def test_start_leaves_with_the_command_s_status(cli, launched: list, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("")
    done = cli("start", "--config", str(config), "--test-size", "4", "--scheduler", "fifo:placement=best-fit",
               "--statedir", "/s", "--bind", "tcp://127.0.0.1:*", "-vv", "--trace",
               "--", "sleep", "--help")  # fmt: skip
    assert (done.code, done.out) == (3, "")
    [(name, (options,), _)] = launched
    assert (name, vars(options)) == (
        "start",
        {
            "nested": False, "stays": False,
            "config": config, "r_path": None, "fake": None, "engine": None, "test_size": 4,
            "schedulers": ("fifo:placement=best-fit",),
            "statedir": Path("/s"), "bind": ("tcp://127.0.0.1:*",), "insecure_tcp": False, "daemon": False,
            "salvage": False, "verbose": 2, "trace": "", "log_format": None, "web": False,
            "command": ("sleep", "--help"),
        },
    )  # fmt: skip


def test_start_a_daemon(cli, launched: list) -> None:
    assert cli("start", "--daemon", "--fake", "2x4").out == "ipc:///there\n"
    assert (launched[0][0], launched[0][1][0].schedulers) == ("start_daemon", ())


def test_a_policy_of_a_queue_that_the_file_lacks(cli, launched: list, tmp_path: Path) -> None:
    config = tmp_path / "queues.toml"
    config.write_text("[queues.debug]\n")
    done = cli("start", "--config", str(config), "--scheduler", "easy;test=fifo")
    assert (done.code, launched) == (2, [])
    assert "queue 'test' has a policy in 'easy;test=fifo', but is not configured: there is only debug" in done.err


@pytest.mark.parametrize("text", ["[queues.debug]\n", "[queues\n"])
def test_a_queue_that_there_is_may_have_a_policy_and_a_bad_file_is_no_wrong_usage(
    cli, launched: list, tmp_path: Path, text: str
) -> None:
    (tmp_path / "c.toml").write_text(text)
    assert cli("start", "--config", str(tmp_path / "c.toml"), "--scheduler", "easy;debug=fifo").code == 3
    assert [name for name, *_ in launched] == ["start"]


def test_start_that_fails(cli, launched: list, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: object) -> int:
        raise FluxschedError("c.toml line 3: unknown key 'grops'")

    monkeypatch.setattr(sys.modules["fluxsched.instance.launch"], "start", fail)
    done = cli("start")
    assert (done.code, done.err) == (1, "fluxsched: start: c.toml line 3: unknown key 'grops'\n")


def test_stop_and_agent(cli, launched: list) -> None:
    where = "ipc:///run/fluxsched/instance.sock"
    assert cli("stop", "--timeout", "5s").out == "stopped ipc:///there\n"
    assert cli("stop", "--uri", "ipc:///there").code == 0
    assert cli("agent", "--host", "n1", "--ranks", "0-3", "--heartbeat", "200ms").code == 0
    assert launched == [
        ("stop", (None, 5.0), {}),
        ("stop", ("ipc:///there", 30.0), {}),
        ("agent", (where,), {"host": "n1", "ranks": "0-3", "heartbeat_s": 0.2}),
    ]


@pytest.mark.usefixtures("at_terminal")
def test_stop_asks_on_a_terminal_if_jobs_run(cli, launched: list) -> None:
    running = {"job-manager.stats-get": {"jobs": {"run": 2}}}
    before = len(launched)
    done = cli("stop", stdin="n\n", answers=running)
    assert (done.code, len(launched)) == (1, before)
    assert "This ends 2 running jobs. Go ahead? [y/N]: n\n" in done.err
    assert cli("stop", stdin="y\n", answers=running).out == "stopped ipc:///there\n"
    assert cli("stop", "--yes").err == cli("stop", answers={"job-manager.stats-get": {"jobs": {}}}).err == ""
    assert cli("stop", answers={"job-manager.stats-get": RPCError("it hangs", 110)}).code == 0


def test_times_of_a_report_are_asked_for_as_they_were_given(cli) -> None:
    asked: list = []
    answer = report(rows=[], capacity=None)["history.report"]
    cli("report", "--since", "2026-01-01", "--until", "-1h", "-c", "5",
        answers={"history.report": lambda payload: asked.append(payload) or answer})  # fmt: skip
    assert asked[0]["since"] < asked[0]["until"]
    assert (asked[0]["by"], asked[0]["max_entries"]) == ("user", 5)
