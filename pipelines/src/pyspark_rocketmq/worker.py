"""A worker of Spark's, made ready for many tasks.

After each task PySpark has Python look through all objects for garbage. With pandas, Arrow and ourselves loaded these
are so many that it takes 50 ms, several times as long as a small task. What was loaded once stays: it is put aside, and
a worker looks through what its tasks have made.
"""

import gc
from functools import cache


@cache
def settled() -> None:
    """Put aside what is loaded by now; once in a process, however often it is asked for."""
    gc.collect()
    gc.freeze()
