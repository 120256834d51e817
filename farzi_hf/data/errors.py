"""Errors of data sets."""

from __future__ import annotations


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one line for a user."""
