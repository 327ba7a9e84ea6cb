"""How the interpreter is set for a broker: once, when everything that lives as long as the process has been made.

The event loop is where messages are appended, and two helper threads want the interpreter's lock now and then. By
default whoever waits for it takes it after 5 ms, wherever the loop is: in the middle of an append, which then lasts
until the other lets go (measured with 50,000 appends a second: nineteen of twenty calls above 60 us were such). The
loop lets go by itself each time it asks the kernel for events and each time it writes; so the helpers are told to be
more patient, and get their turn between two passes instead of inside of one.
"""

import gc
import sys
from typing import Final

GC_THRESHOLD: Final = 20_000
"""Objects between two looks of the garbage collector: what a pass makes is freed by counting, not by collecting."""
SWITCH_INTERVAL_S: Final = 0.05
"""How long a helper thread waits before it takes the lock from a loop that does not let go."""


def settle() -> None:
    """What exists now is never looked at by the collector again, and nobody interrupts the loop for a trifle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
