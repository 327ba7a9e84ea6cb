"""Drives a gRPC proxy with RocketMQ's Python SDK, and judges what arrives: every message once at least, none changed.

    python sdk_flows.py ENDPOINTS SUFFIX [--access-key KEY --secret-key KEY] FLOW:MESSAGES ...

Topics are named `sdk-<kind><suffix>` and groups `sdk-<flow><suffix>`; they exist before. One JSON line per flow:
{"flow": ..., "ok": true, "expected": 20, "received": 20, "copies": 20, "note": ...}. The exit code is 0 if all are ok.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ConsumeResult,
    FilterExpression,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from sdk_run import AWAIT_S, BATCH, INVISIBLE_S, RECALLABLE_S, Run

CHANGED_INVISIBLE_S = 3
MESSAGE_GROUPS = 16
PRIORITY_MAX = 3
"""The priorities are 1 to 3: topics have four queues, and the SDK for Node.js sends priority 0 as a normal message."""
SETTLED_S = 30.0
"""The time without a delivery after which messages that always fail are given up: longer than a long poll of 20 s,
which brokers of RocketMQ 5.3.3 do not end for a failed message. The proxy gives a message up when it receives it again.
"""
DELIVERIES = 3
"""How often a message is delivered before it goes to the dead letters; the groups allow two retries."""

Verdict = dict[str, Any]


def normal(run: Run) -> Verdict:
    consumer, producer = run.consumer("normal"), run.producer("normal")

    def check(view: Any) -> str | None:
        expected = f"key-{view.properties['number']}"
        return None if expected in view.keys else f"the keys of {view.message_id} are {view.keys}"

    run.found.check = check
    run.send_all(
        lambda index: producer.send(run.found.want(run.message("normal", index, tag="a", keys=f"key-{index}")))
    )
    run.receive_all(consumer)
    consumer.shutdown()
    producer.shutdown()
    return run.found.judge()


def filtered(run: Run) -> Verdict:
    """Subscribe to a part of the messages, and wait whether others arrive, too."""
    is_tag = run.flow == "tag"
    expression = FilterExpression("red") if is_tag else FilterExpression("price > 5", FilterType.SQL)
    consumer, producer = run.consumer("normal", expression), run.producer("normal")

    def send(index: int) -> None:
        message = run.message("normal", index, tag=("red", "green", "blue")[index % 3])
        message.add_property("price", str(index % 10))
        if index % 3 == 0 if is_tag else index % 10 > 5:
            run.found.want(message)
        producer.send(message)

    run.send_all(send)
    run.receive_all(consumer)
    run.receive_more(consumer, AWAIT_S)
    consumer.shutdown()
    producer.shutdown()
    return run.found.judge()


def delay(run: Run) -> Verdict:
    """Send messages for a later second, since this SDK has delivery times in seconds."""
    consumer, producer = run.consumer("delay"), run.producer("delay")

    def check(view: Any) -> str | None:
        early_s = int(view.properties["due"]) - time.time()
        return f"early by {early_s} s" if early_s > 0 else None

    def send(index: int) -> None:
        due = int(time.time()) + 3 + index % 3
        message = run.message("delay", index, delivery_timestamp=due)
        message.add_property("due", str(due))
        producer.send(run.found.want(message))

    run.found.check = check
    run.send_all(send)
    run.receive_all(consumer)
    consumer.shutdown()
    producer.shutdown()
    return run.found.judge("none early")


def recall(run: Run) -> Verdict:
    """Take every other message back before it is due."""
    consumer, producer = run.consumer("delay"), run.producer("delay")
    recalled: list[int] = []

    def send(index: int) -> None:
        message = run.message("delay", index, delivery_timestamp=int(time.time()) + RECALLABLE_S)
        if index % 2 == 0:
            producer.send(run.found.want(message))
            return
        receipt = producer.send(message)
        producer.recall_message(message.topic, receipt.recall_handle)
        recalled.append(index)

    run.send_all(send)
    run.receive_all(consumer)
    run.receive_more(consumer, RECALLABLE_S)
    consumer.shutdown()
    producer.shutdown()
    return run.found.judge(f"{len(recalled)} recalled")


def priority(run: Run) -> Verdict:
    """Send all messages, then check that one receiver gets those of higher priority first."""
    consumer, producer = run.consumer("priority"), run.producer("priority")
    lowest = PRIORITY_MAX

    def check(view: Any) -> str | None:
        nonlocal lowest
        expected, before = 1 + int(view.properties["number"]) % PRIORITY_MAX, lowest
        lowest = min(lowest, expected)
        if view.priority != expected:
            return f"priority {view.priority}, expected {expected}"
        return f"priority {expected} after {before}" if expected > before else None

    def send(index: int) -> None:
        producer.send(run.found.want(run.message("priority", index, priority=1 + index % PRIORITY_MAX)))

    run.found.check = check
    run.send_all(send)
    run.receive_all(consumer, receivers=1)
    consumer.shutdown()
    producer.shutdown()
    return run.found.judge("highest first")


def transaction(run: Run) -> Verdict:
    """Commit every other message; the outcome of a fifth of them is left to the checker."""
    checked: list[str] = []

    class Checker(TransactionChecker):  # type: ignore[misc]
        def check(self, message: Any) -> Any:
            checked.append(message.message_id)
            is_even = int(message.properties["number"]) % 2 == 0
            return TransactionResolution.COMMIT if is_even else TransactionResolution.ROLLBACK

    consumer, producer = run.consumer("transaction"), run.producer("transaction", Checker())

    def send(index: int) -> None:
        message = run.message("transaction", index)
        opened = producer.begin_transaction()
        if index % 2 == 0:
            run.found.want(message)
        producer.send(message, opened)
        if index % 10 < 8:
            opened.commit() if index % 2 == 0 else opened.rollback()

    run.send_all(send)
    run.receive_all(consumer, 2 * run.patience_s)
    consumer.shutdown()
    producer.shutdown()
    if run.count > 8 and not checked:
        run.found.wrong.append("no transaction was checked")
    return run.found.judge(f"{len(checked)} checks")


def invisible(run: Run) -> Verdict:
    """Change the invisible time of every message, which brings it back with one more attempt."""
    consumer, producer = run.consumer("normal", FilterExpression("invisible")), run.producer("normal")
    changed: dict[str, float] = {}

    def settle(view: Any) -> None:
        key = view.properties["sha"]
        before = changed.get(key)
        if before is None and run.found.is_own(view):
            changed[key] = time.monotonic()
            consumer.change_invisible_duration(view, CHANGED_INVISIBLE_S)
            return
        if before is not None and view.delivery_attempt != 2:
            run.found.wrong.append(f"attempt {view.delivery_attempt}, expected 2")
        if before is not None and time.monotonic() - before < CHANGED_INVISIBLE_S / 2:
            run.found.wrong.append("back too early")
        run.found.add(view)
        consumer.ack(view)

    run.send_all(lambda index: producer.send(run.found.want(run.message("normal", index, tag="invisible"))))
    deadline = time.monotonic() + run.patience_s
    while not run.found.is_complete and time.monotonic() < deadline:
        for view in consumer.receive(BATCH, INVISIBLE_S) or []:
            settle(view)
    consumer.shutdown()
    producer.shutdown()
    return run.found.judge("all came back")


def exchange(
    run: Run, kind: str, tag: str, handle: Callable[[Any], Any], is_done: Callable[[], bool] = lambda: True
) -> None:
    """Start a push consumer, send all messages, and wait for the wanted ones and until `is_done`."""
    consumer = run.push_consumer(kind, tag, handle, ConsumeResult.SUCCESS)
    producer = run.producer(kind)

    def send(index: int) -> None:
        fields = {"message_group": f"group-{index % MESSAGE_GROUPS}"} if kind == "fifo" else {}
        producer.send(run.found.want(run.message(kind, index, tag=run.flow, **fields)))

    run.send_all(send, MESSAGE_GROUPS)
    run.wait_for_all()
    while not is_done():
        time.sleep(1)
    consumer.shutdown()
    producer.shutdown()


def push(run: Run) -> Verdict:
    """Fail an eighth of the messages once; those must be delivered again."""
    failed: set[str] = set()
    lock = threading.Lock()

    def handle(view: Any) -> Any:
        key = view.properties["sha"]
        with lock:
            if key[0] in "01" and key not in failed:
                failed.add(key)
                return ConsumeResult.FAILURE
        run.found.add(view)
        return ConsumeResult.SUCCESS

    exchange(run, "normal", "push", handle)
    return run.found.judge(f"{len(failed)} failed once")


def fifo(run: Run) -> Verdict:
    """Check that the messages of each message group arrive in the order in which they were sent."""
    last: dict[str, int] = {}
    lock = threading.Lock()

    def handle(view: Any) -> Any:
        number, group = int(view.properties["number"]), view.message_group
        with lock:
            if number < last.get(group, 0):
                run.found.wrong.append(f"{number} after {last[group]} in {group}")
            last[group] = number
        run.found.add(view)
        return ConsumeResult.SUCCESS

    exchange(run, "fifo", "*", handle)
    return run.found.judge("in order")


def dead_letters(run: Run) -> Verdict:
    """Fail every message until it is given up; the harness reads the dead letters afterwards."""
    attempts: dict[str, int] = {}
    lock = threading.Lock()
    newest = time.monotonic()

    def handle(view: Any) -> Any:
        nonlocal newest
        key = view.properties["sha"]
        with lock:
            attempt = attempts[key] = attempts.get(key, 0) + 1
            newest = time.monotonic()
        if attempt == DELIVERIES:
            run.found.add(view)
        elif attempt > DELIVERIES:
            run.found.wrong.append(f"delivery {attempt}")
        return ConsumeResult.FAILURE

    kind = "normal" if run.flow == "dead-letters" else "fifo"
    exchange(run, kind, run.flow, handle, lambda: time.monotonic() - newest > SETTLED_S)
    return run.found.judge(f"{DELIVERIES} deliveries each")


FLOWS: dict[str, Callable[[Run], Verdict]] = {
    "normal": normal, "tag": filtered, "sql": filtered, "push": push, "fifo": fifo, "delay": delay, "recall": recall,
    "priority": priority, "transaction": transaction, "invisible": invisible, "dead-letters": dead_letters,
    "fifo-dead-letters": dead_letters,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoints")
    parser.add_argument("suffix")
    parser.add_argument("flows", nargs="+", metavar="FLOW:MESSAGES")
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    options = parser.parse_args()
    is_ok = True
    for name, _, count in (one.partition(":") for one in options.flows):
        try:
            result = FLOWS[name](Run(options, name, int(count)))
        except Exception as error:  # noqa: BLE001  the verdict of this flow; the others run
            result = {
                "ok": False,
                "expected": 0,
                "received": 0,
                "copies": 0,
                "note": f"{type(error).__name__}: {error}",
            }
        is_ok &= bool(result["ok"])
        print(json.dumps({"flow": name, **result}), flush=True)
    sys.stdout.flush()
    os._exit(0 if is_ok else 1)  # the SDK leaves threads behind


if __name__ == "__main__":
    main()
