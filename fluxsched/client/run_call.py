"""Program of a job that is a call of an `Executor`: runs it and writes what it returns or raises.

It imports little, since it starts once a call. What the call prints is the job's stderr; its stdout is the result.
"""

from __future__ import annotations

import os
import pickle
import sys


def main() -> None:
    """Run the call in the named file."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(sys.argv[1], "rb") as file:
        path, call = pickle.load(file)
    sys.path[:] = path
    try:
        function, args, kwargs = pickle.loads(call)
        result = True, function(*args, **kwargs)
    except Exception as fault:
        result = False, fault
    with output:
        output.write(_pickled(*result))


def _pickled(has_returned: bool, value: object) -> bytes:
    try:
        return pickle.dumps((has_returned, value))
    except Exception as fault:
        return pickle.dumps((False, RuntimeError(f"{value!r:.200} cannot be sent back: {fault}")))


if __name__ == "__main__":
    main()
