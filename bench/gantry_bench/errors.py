"""The one exception of the benchmark: something that a person must do or see, said in one line.

Everything that can go wrong between processes (a missing tool, a server that does not start, a load generator that
gives up) ends as this, so that the command prints a sentence and a remedy instead of a traceback.
"""

from __future__ import annotations


class BenchmarkFailed(Exception):
    """The run cannot go on. The text names the cause and, where there is one, the remedy; print it and exit 1."""
