"""How the interpreter is set for a broker: once, when everything that lives as long as the process has been made.

The interval after which a thread takes the interpreter's lock from another is left at Python's 5 ms. With 50 ms an
append is interrupted less often in its middle, but the loop waits as long for a helper thread as that does for it:
measured over loopback, 64 sends under way on one connection, the rate fell from 94,000 to 71,000 a second.
"""

import gc
from typing import Final

GC_THRESHOLD: Final = 20_000
"""Objects between two looks of the garbage collector: what a pass makes is freed by counting, not by collecting."""


def settle() -> None:
    """What exists now is never looked at by the collector again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
