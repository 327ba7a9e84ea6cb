"""Loaded by every Python process of one Spark program: the sink's crash points execute the suite's order.

The folder in `SINK_KILLS` contains the order, `point count action`; a file with one byte for each hit of its point, by
any process since the order was given; and `reached`, as soon as the order was executed, which happens once.

    wait      wait until the process is killed: everything that was started stays in its current state
    die       kill -9 of this process alone
    continue  only report that the point is reached; the suite kills another process
"""

import os
import signal
import time

FOLDER = os.environ.get("SINK_KILLS", "")


def hit(point: str) -> None:
    """Replace `crash_points.hit`: execute the order when its crash point is reached."""
    try:
        with open(f"{FOLDER}/order") as file:
            wanted, count, action = file.read().split()
    except (OSError, ValueError):
        return
    if point != wanted:
        return
    counter = os.open(f"{FOLDER}/{point}.count", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(counter, b".")
        reached = os.fstat(counter).st_size
    finally:
        os.close(counter)
    if reached < int(count):
        return
    try:
        os.close(os.open(f"{FOLDER}/reached", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while action == "wait":
        time.sleep(60)


if FOLDER:
    try:
        from pyspark_rocketmq.sink import crash_points
    except ImportError:
        pass  # this Python process does not run the sink
    else:
        crash_points.hit = hit
