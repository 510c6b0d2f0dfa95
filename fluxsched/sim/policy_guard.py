"""A plugin policy in our process: an exception, or an exit, becomes a refusal that names it.

Law: a bug of ours is never hidden. A simulation in which only policies of ours take part is not guarded. What a policy
does beyond Python's control (`os._exit`, a crash in C, a loop) cannot be noticed here: `policy check` runs
it in a separate process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluxsched.core.job_text import exit_code
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.sched.loading import policy_line
from fluxsched.sched.registry import has_plugin, split_queues


def exit_text(fault: SystemExit) -> str:
    """Return a text about a policy that has called `sys.exit`."""
    return f"ended the process with status {exit_code(fault)}"


@contextmanager
def policy_faults(policy: str, when: str = "", noun: str = "policy") -> Iterator[None]:
    """Whatever a policy, or another `noun`, raises within becomes an InvalidValue: with the fault, its line, `when`."""
    try:
        yield
    except FluxschedError:
        raise
    except SystemExit as fault:
        raise InvalidValue(f"{noun} {policy} {exit_text(fault)}{when}{_where(fault)}") from fault
    except Exception as fault:  # foreign code: whatever it raises is its author's to know
        text = str(fault)
        said = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
        raise InvalidValue(f"{noun} {policy} raised {said}{_where(fault)}") from fault


def is_foreign(specs: str) -> bool:
    """Return whether `SPEC;QUEUE=SPEC;...` names a policy of a plugin."""
    general, own = split_queues(specs)
    return any(map(has_plugin, (general, *own.values())))


def _where(fault: BaseException) -> str:
    line = policy_line(fault)
    return f" ({line})" if line else ""
