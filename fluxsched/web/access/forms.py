"""The body of a form, read within a size and a time.

Law: what is longer, slower or anything else than a form is refused before it is read to its end.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from fluxsched.errors import InvalidValue, LimitExceeded

BODY_BYTES_MAX = 65_536
"""Of a form: a thousand job ids."""
BODY_S = 10.0
"""For how long a form may take to arrive (seconds)."""
FIELDS_MAX = 256
"""Of a form: those of a page of jobs, each with a box."""
TOGETHER = "ids"
"""The field whose values of one form are one list."""
_KIND = "application/x-www-form-urlencoded"


class TooSlow(InvalidValue):
    """A form that did not arrive within BODY_S."""


async def fields_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name but TOGETHER. Raises InvalidValue."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise InvalidValue(f"the body is {kind or 'of no type'}, not {_KIND}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise LimitExceeded(f"a form has {BODY_BYTES_MAX} bytes at most")
    except TimeoutError:
        raise TooSlow(f"the form did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise InvalidValue("the form did not arrive to its end") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except UnicodeDecodeError:
        raise InvalidValue("the form is not UTF-8 text") from None
    except ValueError:
        raise LimitExceeded(f"a form has {FIELDS_MAX} fields at most") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        found[name] = f"{found[name]} {value}" if name == TOGETHER and name in found else value
    return found
