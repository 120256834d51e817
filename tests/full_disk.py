"""A disk that is full."""

from __future__ import annotations

import errno
import io
import os

NO_SPACE = os.strerror(errno.ENOSPC)


class FullFile(io.RawIOBase):
    """A file on a full disk."""

    def writable(self):
        return True

    def write(self, data):
        raise OSError(errno.ENOSPC, NO_SPACE)
