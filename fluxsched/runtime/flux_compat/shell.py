"""What Flux's shell serves for its job: input for the tasks, in the words of RFC 24.

Law: each job has a service of its own, named in its `shell.init` event; it is there as long as the job's tasks are sent
input, and ENOSYS else, which stock clients take for "no input is wanted".
"""

from __future__ import annotations

import binascii
import errno

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.errors import InvalidValue, Refused
from fluxsched.protocol.messages.flux_jobs import StdinRequest
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.input import ENDED, JobInputs

ALL_TASKS = "all"


def task_service(jobid: int) -> str:
    """The name of a job's own service."""
    return f"shell-{format_f58(jobid, ascii=True)}"


class TaskService:
    """Serves `stdin` of every job, and refuses `proctable`."""

    def __init__(self, inputs: JobInputs, router: Router) -> None:
        self._inputs = inputs
        router.serve_local({"shell-*.stdin": self._stdin, "shell-*.proctable": _no_processes})

    def _stdin(self, request: RpcRequest) -> None:
        wanted = request.payload(StdinRequest)
        jobid = parse_jobid(request.topic.partition("-")[2].rpartition(".")[0])
        tasks = None if wanted.rank == ALL_TASKS else Idset.parse(wanted.rank)
        try:
            self._inputs.send(request, jobid, _decoded(wanted), tasks, eof=wanted.eof)
        except Refused as error:
            if error.errnum in (ENDED, errno.ENOENT):
                raise Refused(str(error), errno.ENOSYS) from error
            raise


def _decoded(wanted: StdinRequest) -> bytes:
    if wanted.encoding != "base64":
        return wanted.data.encode()
    try:
        return binascii.a2b_base64(wanted.data, strict_mode=True)
    except ValueError as exc:  # binascii.Error is one, and so is what it says of text that is not ASCII
        raise InvalidValue(f"data is not base64: {exc}") from exc


def _no_processes(request: RpcRequest) -> None:
    raise Refused("an instance of fluxsched does not serve the processes of a job", errno.ENOSYS)
