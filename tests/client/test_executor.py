"""The executor of `concurrent.futures`: calls and commands as jobs of a real instance."""

from __future__ import annotations

import ast
import asyncio
import math
import re
import threading
from concurrent.futures import wait

import pytest

import fluxsched
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Disconnected, InvalidValue, RPCError

NOT_MADE_AGAIN = "from urllib.error import HTTPError; raise HTTPError('url', 404, 'gone', None, None)"
"""Raises what pickle writes and does not read."""


@pytest.fixture
async def run(world):
    """Call a function with an executor of a new instance, in a thread of its own."""
    uri = (await world.instance(fake="1x4")).uri

    async def run(function, **options):
        def call():
            with fluxsched.Executor(uri, **options) as executor:
                return function(executor)

        return await asyncio.to_thread(call)

    return run


@pytest.mark.slow
async def test_it_returns_what_calls_return_and_raise(run):
    def use(executor):
        assert executor.submit(pow, 2, exp=10).result() == 1024
        assert list(executor.map(math.sqrt, [0, 4, 9])) == [0.0, 2.0, 3.0]
        assert executor.submit(print, "is not in the result").result() is None
        with pytest.raises(ValueError, match="invalid literal"):
            executor.submit(int, "x").result()
        with pytest.raises(RuntimeError, match="cannot be sent back: cannot pickle"):
            executor.submit(threading.Lock).result()
        with pytest.raises(RuntimeError, match=r"HTTPError 404: 'gone'.* cannot be sent back: "):
            executor.submit(exec, NOT_MADE_AGAIN).result()
        with pytest.raises(fluxsched.JobError, match="exit code 7"):
            executor.submit(exec, "import os; os._exit(7)").result()

    await run(use)


@pytest.mark.slow
async def test_a_call_that_raises_is_a_failed_job_and_is_tried_again(run, tmp_path):
    path = tmp_path / "attempts"
    text = "open(path, 'a').write('x'); count = len(open(path).read()); assert count > 1, count"

    def use(executor):
        assert executor.submit(exec, text, {"path": str(path)}).result() is None

    await run(use, requeue=1, retry_on="exit:1", retry_pause_s=0)
    assert path.read_text() == "xx"


async def test_it_returns_the_exit_status_of_commands(run):
    def use(executor):
        ends = [["true"], ["sh", "-c", "exit 3"], ["sh", "-c", "kill -9 $$"], Jobspec.from_command(["false"])]
        assert [future.result() for future in map(executor.submit, ends)] == [0, 3, -9, 1]
        future = executor.submit(Jobspec.from_command(["true"], nodes=9))
        with pytest.raises(fluxsched.JobError, match="needs 9 nodes"):
            future.result()
        unknown = executor.submit(Jobspec.from_command(["true"], queue="nowhere"))
        with pytest.raises(RPCError, match="nowhere"):
            unknown.jobid()
        assert "nowhere" in str(unknown.exception())

    await run(use)


async def test_a_cancelled_future_cancels_its_job_and_events_are_told(run):
    def use(executor):
        names, has_ended = [], threading.Event()

        def note(future, event):
            names.append(event["name"])
            if event["name"] == "clean":
                has_ended.set()

        future = executor.submit(["sleep", "1000"])
        future.add_event_callback(None, note)
        assert future.jobid(60) > 0
        assert future.cancel()
        assert future.cancelled()
        assert future in wait([future], 60).done
        assert has_ended.wait(60)
        assert names[0] == "submit"
        assert "exception" in names
        ended = executor.submit(["true"])
        assert ended.result() == 0
        assert not ended.cancel()

    await run(use)


async def test_shutdown_cancels_what_is_left_if_asked_to(run):
    def use(executor):
        future = executor.submit(["sleep", "1000"])
        executor.shutdown(cancel_futures=True)
        assert future.cancelled()
        with pytest.raises(RuntimeError, match="shut down"):
            executor.submit(["true"])

    await run(use)


async def test_what_cannot_be_a_job_is_refused_at_once(run):
    def use(executor):
        with pytest.raises(InvalidValue, match="as one list of words"):
            executor.submit(["echo"], "hello")
        with pytest.raises(InvalidValue, match="7 is no job"):
            executor.submit(7)
        with pytest.raises(InvalidValue, match=re.escape("""give ["sh", "-c", 'echo hi']""")):
            executor.submit("echo hi")
        with pytest.raises(InvalidValue) as refused:
            executor.submit("echo '" + 100 * "x")
        assert ast.literal_eval(str(refused.value).partition(": give ")[2])[:2] == ["sh", "-c"]
        with pytest.raises(InvalidValue, match="the call cannot be sent: cannot pickle"):
            executor.submit(print, threading.Lock())

    await run(use)


def test_without_an_instance_it_says_so(tmp_path):
    with pytest.raises(Disconnected):
        fluxsched.Executor(f"ipc://{tmp_path}/none")
    with pytest.raises(InvalidValue, match="count must be 1 or more, not 0"):
        fluxsched.Executor(f"ipc://{tmp_path}/none", cores_per_task=0)
    with pytest.raises(TypeError, match=r"'foo'.*; the options are those of fluxsched.Jobspec"):
        fluxsched.Executor(f"ipc://{tmp_path}/none", foo=1)
    with pytest.raises(TypeError) as wrong:
        fluxsched.Executor(f"ipc://{tmp_path}/none", ntasks="a")
    assert "the options are those of" not in str(wrong.value)
