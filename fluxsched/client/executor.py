"""Executor of `concurrent.futures` whose work is jobs of an instance, as Flux's `FluxExecutor` and for the same users.

    with fluxsched.Executor(cores_per_task=2) as executor:
        squares = list(executor.map(square, range(100)))
        status = executor.submit(["./simulate", "--seed", "1"]).result()

A call travels as a file of its job (RFC 37), and what it returns as the job's output, so hosts need no common file
system, only the same Python and modules. Functions of the main program need `cloudpickle`; for others `pickle` will do.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor as BaseExecutor
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from stat import S_IFREG
from typing import Any, Final

from fluxsched.client.aio import AsyncHandle, connect
from fluxsched.client.calls import Object
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, InvalidValue

CALL: Final = "call.pickle"
"""The file with a pickled call, in the temporary directory of its job."""

EventCallback = Callable[["JobFuture", Object], object]


class JobError(FluxschedError):
    """A job that ended by an exception (RFC 21) or, if it was a call, without a result; its output may say more."""

    def __init__(self, jobid: int, reason: str, exception_type: str | None = None) -> None:
        super().__init__(f"job {format_f58(jobid)}: {reason}")
        self.jobid = jobid
        self.exception_type = exception_type


class _Connection:
    """A handle in a thread of its own, and what is under way there."""

    def __init__(self, uri: str | None, key: str | os.PathLike[str] | None) -> None:
        self._uri, self._key = uri, key
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="fluxsched-executor", daemon=True)
        self._thread.start()
        ready.result()

    def start(self, work: Callable[[AsyncHandle], Coroutine[Any, Any, None]]) -> None:
        """Do something with the handle, in its thread. Raises RuntimeError once it is closed."""
        self._loop.call_soon_threadsafe(self._start, work)

    def close(self, wait: bool) -> None:
        """Disconnect when nothing is under way any more, and wait until then if asked to."""
        with suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._closing.set)
        if wait:
            self._thread.join()

    def _start(self, work: Callable[[AsyncHandle], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(work(self._handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _serve(self, ready: Future[None]) -> None:
        try:
            self._loop.run_until_complete(self._connected(ready))
        except FluxschedError as fault:
            ready.set_exception(fault)
        finally:
            self._loop.close()

    async def _connected(self, ready: Future[None]) -> None:
        async with connect(self._uri, key=self._key) as self._handle:
            await self._handle.rpc("instance.info")
            ready.set_result(None)
            await self._closing.wait()
            while self._tasks:
                await asyncio.wait(self._tasks)


class JobFuture(Future[Any]):
    """Result of a job: the exit status of a command (negative: a signal), or what a call returned."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection
        self._accepted: Future[int] = Future()

    def jobid(self, timeout: float | None = None) -> int:
        """Return the job's id once it is accepted. Raises what refused it; TimeoutError after `timeout` seconds."""
        return self._accepted.result(timeout)

    def cancel(self) -> bool:
        """Cancel the job; the future is cancelled at once. Return False if it is done already.

        Who waits by `concurrent.futures.wait` is told once the job has ended.
        """
        is_first = not self.cancelled()
        if not super().cancel():
            return False
        if is_first:
            with suppress(RuntimeError):  # the connection is closed: the job is over
                self._connection.start(self._cancel_job)
        return True

    def add_event_callback(self, name: str | None, callback: EventCallback) -> None:
        """Call back for each event of the job with this name, or of any (RFC 18), past ones too.

        It is called with the future and the event, in the executor's thread. Raises RuntimeError after `shutdown`.
        """

        async def follow(handle: AsyncHandle) -> None:
            with suppress(FluxschedError):  # refused, or the instance is lost: the future itself says so
                jobid = await asyncio.wrap_future(self._accepted)
                async for answer in handle.stream("job-manager.eventlog", {"id": jobid, "follow": True}):
                    for event in answer["events"]:
                        if name in (None, event["name"]):
                            callback(self, event)

        self._connection.start(follow)

    async def _cancel_job(self, handle: AsyncHandle) -> None:
        with suppress(FluxschedError):  # refused, or over meanwhile
            await handle.cancel(await asyncio.wrap_future(self._accepted))

    async def run(self, handle: AsyncHandle, work: Jobspec | Object | int, *, is_call: bool) -> None:
        """Submit the job, unless its id is given, wait for it and set the result: for the executor."""
        try:
            try:
                jobid = work if isinstance(work, int) else await handle.submit(work)
            except FluxschedError as fault:
                self._accepted.set_exception(fault)
                raise
            self._accepted.set_result(jobid)
            result = await _result(handle, jobid, is_call=is_call)
        except Exception as fault:  # a call's own, which may be any, or that of its job
            if self.set_running_or_notify_cancel():
                self.set_exception(fault)
        else:
            if self.set_running_or_notify_cancel():
                self.set_result(result)


class Executor(BaseExecutor):
    """Runs calls, commands and jobspecs as jobs; `options` are those of `Jobspec.from_command`, such as `nodes`."""

    def __init__(self, uri: str | None = None, *, key: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Connect to an instance, as `connect` does. Raises FluxschedError if there is none or an option is wrong."""
        self._options = {"cwd": os.getcwd(), **options}
        try:
            Jobspec.from_command(["true"], **self._options)
        except TypeError as fault:
            if "keyword argument" not in str(fault):  # compiled code has other words for it
                raise
            raise TypeError(f"{fault}; the options are those of fluxsched.Jobspec.from_command") from None
        self._lock = threading.Lock()
        self._is_shut = False
        self._open: set[JobFuture] = set()
        self._connection = _Connection(uri, key)

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> JobFuture:
        """Submit a call of `work`, a command (list of words) or a jobspec (as a value or JSON) as one job.

        Each task of the job runs the call; what that of the first one returns is the result. Raises InvalidValue if it
        cannot be a job; what refuses it later is the future's exception.
        """
        is_call = callable(work)
        if (args or kwargs) and not is_call:
            raise InvalidValue("only a callable takes arguments: give a command as one list of words")
        return self._follow(self._call(work, args, kwargs) if is_call else self._jobspec(work), is_call=is_call)

    def attach(self, jobid: int) -> JobFuture:
        """Return the future of a job that was submitted before; its result is the exit status.

        `shutdown` waits for it as for the executor's own.
        """
        return self._follow(jobid, is_call=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; with `wait` return once all jobs are over, which `cancel_futures` cancels."""
        with self._lock:
            self._is_shut = True
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        self._connection.close(wait)

    def _follow(self, work: Jobspec | Object | int, *, is_call: bool) -> JobFuture:
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the executor is shut down: it takes no more work")
            future = JobFuture(self._connection)
            self._open.add(future)
            self._connection.start(lambda handle: future.run(handle, work, is_call=is_call))
        future.add_done_callback(self._open.discard)
        return future

    def _jobspec(self, work: Any) -> Jobspec | Object:
        if isinstance(work, Jobspec | Mapping):
            return work if isinstance(work, Jobspec) else dict(work)
        if isinstance(work, list | tuple):
            return Jobspec.from_command(work, **self._options)
        remedy = f'["sh", "-c", {work[:80]!r}]' if isinstance(work, str) else "a callable, a list of words or a jobspec"
        raise InvalidValue(f"{work!r:.80} is no job: give {remedy}")

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Object:
        program = [sys.executable, "-m", "fluxsched.client.run_call", f"{{{{tmpdir}}}}/{CALL}"]
        name = getattr(function, "__name__", None)
        jobspec = Jobspec.from_command(program, **{"name": name, **self._options}).to_json()
        data = b64encode(_pickled(function, args, kwargs)).decode()
        file = {"mode": S_IFREG | 0o600, "encoding": "base64", "data": data}
        jobspec["attributes"]["system"]["files"] = {CALL: file}
        return jobspec


async def _result(handle: AsyncHandle, jobid: int, *, is_call: bool) -> Any:
    """Wait for a job; return its exit status or the result of the call. Raises JobError, or what the call raised."""
    ended = await anext(handle.stream("job-manager.wait-all", {"ids": [jobid]}))
    if ended.get("exception_type") is not None or ended["status"] < 0:
        raise JobError(jobid, ended["errstr"], ended.get("exception_type"))
    if not is_call:
        return os.waitstatus_to_exitcode(ended["status"])
    answers = [answer async for answer in handle.stream("job-manager.output", {"id": ended.get("last") or jobid})]
    output = b"".join(each["data"] for each in answers if each.get("stream") == "stdout" and not each.get("task"))
    try:
        has_returned, value = pickle.loads(output)
    except Exception:  # nothing, or half of it, or what cannot be made again here
        if ended["success"]:
            raise
        raise JobError(jobid, ended["errstr"]) from None
    if not has_returned:
        raise value
    if not ended["success"]:
        raise JobError(jobid, ended["errstr"])
    return value


def _pickled(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Return what `run_call` reads; by `cloudpickle` if it is installed. Raises InvalidValue."""
    try:
        module = import_module("cloudpickle")
    except ImportError:
        module = pickle
        if getattr(function, "__module__", None) == "__main__":
            text = f"{function!r} is of the main program: install cloudpickle, or move it to a module"
            raise InvalidValue(text) from None
    try:
        return pickle.dumps((sys.path, module.dumps((function, args, kwargs))))
    except Exception as fault:
        remedy = "; cloudpickle, once installed, can send more" if module is pickle else ""
        raise InvalidValue(f"the call cannot be sent: {fault}{remedy}") from fault
