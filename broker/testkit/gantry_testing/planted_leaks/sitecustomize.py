"""Makes a broker leak, as `gantry_testing.leaks` describes. Python imports this module before the program."""

import contextlib
import os
import sys
import threading
import time


def _leak_forever(leak: str, period_s: float) -> None:
    kept: list[object] = []
    while True:
        time.sleep(period_s)
        if leak == "descriptor":
            kept.append(os.open(os.devnull, os.O_RDONLY))
        elif leak == "memory":
            kept.append(b"x" * 1_000_000)
        elif leak == "thread":
            thread = threading.Thread(target=threading.Event().wait, name="planted leak", daemon=True)
            thread.start()
            kept.append(thread)


def _keep_offsets() -> None:
    """Let the broker keep the offsets of deleted topics and groups."""
    name = "gantry_broker.server.core.offsets"
    while name not in sys.modules or not hasattr(sys.modules[name], "ConsumerOffsets"):
        time.sleep(0.05)
    table = sys.modules[name].ConsumerOffsets
    assert hasattr(table, "_forget"), "the table has no method that removes entries"
    table._forget = lambda self, matches: None


def _plant() -> None:
    leak = os.environ.get("GANTRY_PLANTED_LEAK", "")
    if not leak or "gantry_broker" not in sys.orig_argv:
        return
    if leak == "table":
        threading.Thread(target=_keep_offsets, daemon=True).start()
        return
    period_s = float(os.environ["GANTRY_PLANTED_LEAK_PERIOD_S"])
    threading.Thread(target=_leak_forever, args=(leak, period_s), name="planted leaks", daemon=True).start()


with contextlib.suppress(ValueError):
    _plant()
