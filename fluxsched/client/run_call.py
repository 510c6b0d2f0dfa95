"""Program of a job that is a call of an `Executor`: runs it and writes what it returns or raises.

It imports little, since it starts once a call. What the call prints is the job's stderr; its stdout is the result. A
call that raises makes the job fail, with exit status 1.
"""

from __future__ import annotations

import os
import pickle
import sys


def main() -> int:
    """Run the call in the named file; return 1 if it raises, after its traceback, else 0."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(sys.argv[1], "rb") as file:
        path, call = pickle.load(file)
    sys.path[:] = path
    try:
        function, args, kwargs = pickle.loads(call)
        result = True, function(*args, **kwargs)
    except Exception as fault:
        sys.excepthook(type(fault), fault, fault.__traceback__)
        result = False, fault
    has_returned, data = _pickled(*result)
    with output:
        output.write(data)
    return int(not has_returned)


def _pickled(has_returned: bool, value: object) -> tuple[bool, bytes]:
    try:
        data = pickle.dumps((has_returned, value))
        if not has_returned:
            pickle.loads(data)  # exceptions with arguments of their own often cannot be made again
        return has_returned, data
    except Exception as fault:
        return False, pickle.dumps((False, RuntimeError(f"{value!r:.200} cannot be sent back: {fault}")))


if __name__ == "__main__":
    sys.exit(main())
