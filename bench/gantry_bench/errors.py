"""The one exception of the benchmarks: a one-line message with the cause and the remedy.

Every failure between processes (a missing tool, a server that does not start, a load generator that stops early) is
raised as this exception, so that the command prints a sentence and a remedy instead of a traceback.
"""

from __future__ import annotations


class BenchmarkFailed(Exception):
    """The run cannot continue. The text names the cause and, where there is one, the remedy; print it and exit with
    1."""
