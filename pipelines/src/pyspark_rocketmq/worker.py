"""Prepare a Python process of Spark: make struct classes usable in threads, and make garbage collection cheap.

After each task PySpark runs a full garbage collection. With pandas, Arrow and this package loaded that takes 50 ms,
several times as long as a small task. So all objects that were loaded once are frozen, and a worker collects only what
its tasks have created.
"""

import gc
from functools import cache

from gantry_wire.structs import make_structs_ready


def prepare_worker() -> None:
    """Prepare this process for a task."""
    make_structs_ready()
    _freeze_loaded_objects()


@cache
def _freeze_loaded_objects() -> None:
    """Exclude all loaded objects from garbage collection; done once in a process."""
    gc.collect()
    gc.freeze()
