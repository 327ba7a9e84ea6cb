"""What can go wrong before any promise is tested; each error names the remedy."""

from __future__ import annotations


class InteropError(Exception):
    """The harness could not do its work; says nothing about the broker."""


class MissingTool(InteropError):
    """A program this harness needs is not installed."""


class DeadlineExceeded(InteropError):
    """Something did not happen in its time; the message names the log to read."""
