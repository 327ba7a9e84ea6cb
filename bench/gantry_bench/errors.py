"""The one exception of the benchmark: a one-line message with what a person must do or know.

Everything that can go wrong between processes (a missing tool, a server that does not start, a load generator that
gives up) ends as this, so that the command prints a sentence and a remedy instead of a traceback.
"""

from __future__ import annotations


class BenchmarkFailed(Exception):
    """The run cannot continue. The text names the cause and, where there is one, the remedy; print it and exit with
    1."""
