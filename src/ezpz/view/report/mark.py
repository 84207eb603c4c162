"""Tell the pages that this user's ezpz has written from those of others, and from those that were changed since.

A page ends with a mark, which only who can read the key in this user's state folder can make:

    <!-- ezpz:9b0f…e1 -->        BLAKE2b over what is before it, with the key in ~/.local/state/ezpz/report-key
"""

from __future__ import annotations

import hmac
import os
from hashlib import blake2b
from pathlib import Path

from ezpz.files import own_state_folder, read_bytes, write_whole

_BYTES = 32
_MARK = b"<!-- ezpz:%s -->\n"
_LENGTH = len(_MARK % bytes(2 * _BYTES))
_LARGEST = 1 << 27  # bytes of a page: no report of ours comes near


def marked(page: bytes) -> bytes:
    """Return a page with this user's mark; without one where no key can be kept."""
    key = _key()
    return page + _mark(key, page) if key else page


def is_ours(path: Path) -> bool:
    """Tell whether this user's ezpz has written a page, and nobody has changed it."""
    try:
        page = read_bytes(path, _LARGEST)
    except OSError:
        return False
    key = _key()
    return bool(key) and hmac.compare_digest(page[-_LENGTH:], _mark(key, page[:-_LENGTH]))


def _mark(key: bytes, page: bytes) -> bytes:
    return _MARK % blake2b(page, key=key, digest_size=_BYTES).hexdigest().encode()


def _key() -> bytes:
    """Return the key, which is made with the first page; empty where it cannot be kept."""
    try:
        path = Path(own_state_folder(os.environ), "report-key")
        if not path.exists():
            write_whole(path, os.urandom(_BYTES), private=True)
        return read_bytes(path)[:_BYTES]
    except OSError:
        return b""
