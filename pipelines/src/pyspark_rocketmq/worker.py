"""A process of Spark's, made ready for reads and writes that run in threads, and for many tasks.

After each task PySpark has Python look through all objects for garbage. With pandas, Arrow and ourselves loaded these
are so many that it takes 50 ms, several times as long as a small task. What was loaded once stays: it is put aside, and
a worker looks through what its tasks have made.
"""

import gc
import threading
from functools import cache
from typing import Final

from gantry_wire.structs import ready_structs

_one_at_a_time: Final = threading.Lock()


def prepare_structs() -> None:
    """Have all classes of documents worked out, whichever thread comes first; see `ready_structs`."""
    with _one_at_a_time:
        ready_structs()


def prepare_worker() -> None:
    """Prepare for a task."""
    prepare_structs()
    _put_aside()


@cache
def _put_aside() -> None:
    """Put aside what is loaded by now; once in a process, however often it is asked for."""
    gc.collect()
    gc.freeze()
