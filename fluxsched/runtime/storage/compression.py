"""Parts of jobspecs as they are kept: compressed if that makes them smaller.

Law: what is read is what was written, by this version or an earlier one, which compressed none. A part is JSON, and no
JSON begins with the first byte of zlib's format: what does is compressed.
"""

from __future__ import annotations

import errno
import zlib
from typing import Final

from fluxsched.errors import Refused

COMPRESSED_BYTES_MIN: Final = 512
"""A smaller part stays as it is: it would save less than its row takes."""
EXPANDED_BYTES_MAX: Final = 64 << 20
"""A larger part stays as it is; no damaged one takes more memory than this."""
LEVEL: Final = 1
"""The fastest, 35 us for an environment of 8 KiB; the usual one takes 50 us and makes it 2 to 5 % smaller."""
_FIRST_BYTE: Final = b"\x78"
"""Of a stream of zlib's own window size, the one that is used here."""


def compressed(text: bytes) -> bytes:
    """What is to be kept of a part."""
    if not COMPRESSED_BYTES_MIN <= len(text) <= EXPANDED_BYTES_MAX:
        return text
    found = zlib.compress(text, LEVEL)
    return found if len(found) < len(text) else text


def expanded(kept: bytes) -> bytes:
    """The text of a part. Raises Refused (EIO) for a damaged one."""
    if not kept.startswith(_FIRST_BYTE):
        return kept
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(kept, EXPANDED_BYTES_MAX + 1)
    except zlib.error as fault:
        raise _damaged(str(fault)) from fault
    if len(text) > EXPANDED_BYTES_MAX:
        raise _damaged(f"it expands to more than {EXPANDED_BYTES_MAX} bytes")
    if not stream.eof:
        raise _damaged("its end is missing")
    return text


def _damaged(why: str) -> Refused:
    return Refused(
        f"an environment or file of a job cannot be read from the state: {why}: restore a backup (fluxsched restore)",
        errno.EIO,
    )
