"""Drives a gRPC proxy with RocketMQ's Python SDK, and judges what arrives: every message once at least, none changed.

    python sdk_flows.py ENDPOINTS SUFFIX MESSAGES [--access-key KEY --secret-key KEY] [flow ...]

Topics are named `sdk-<kind><suffix>` and groups `sdk-<flow><suffix>`; they exist before. One JSON line per flow:
{"flow": ..., "ok": true, "sent": 20, "received": 20, "note": ...}. The exit code is 0 if every flow is ok.
"""

import argparse
import hashlib
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

INVISIBLE_S = 15
PATIENCE_S = 90.0


class Run:
    """One run: the connection, and helpers that send and judge."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.suffix: str = options.suffix
        self.run_id = ""
        """Tells the messages of this flow from earlier ones: a new group begins with the last messages of a queue."""
        self.count: int = options.messages
        credentials = Credentials(options.access_key, options.secret_key) if options.access_key else Credentials()
        self.configuration = ClientConfiguration(options.endpoints, credentials)

    def topic(self, kind: str) -> str:
        return f"sdk-{kind}{self.suffix}"

    def group(self, flow: str) -> str:
        return f"sdk-{flow}{self.suffix}"

    def producer(self, kind: str, checker: Any = None) -> Any:
        producer = Producer(self.configuration, (self.topic(kind),), checker=checker)
        producer.startup()
        return producer

    def consumer(self, kind: str, flow: str, expression: Any = None) -> Any:
        subscription = {self.topic(kind): expression or FilterExpression()}
        consumer = SimpleConsumer(self.configuration, self.group(flow), subscription)
        consumer.startup()
        for message in first_receive(consumer):  # a group is known to a queue from its first receive on
            consumer.ack(message)
        return consumer

    def message(self, kind: str, **fields: Any) -> Any:
        message = Message()
        message.topic = self.topic(kind)
        message.body = f"{kind} {uuid.uuid4()}".encode() * 8
        for name, value in fields.items():
            setattr(message, name, value)
        message.add_property("sha", digest(message.body))
        message.add_property("run", self.run_id)
        return message


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def first_receive(consumer: Any) -> list[Any]:
    """Receive until a call succeeds: RocketMQ's proxy fails receives that overtake the settings of the client."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return list(consumer.receive(32, INVISIBLE_S) or [])
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def receive_all(run: Run, consumer: Any, wanted: set[str], *, patience_s: float = PATIENCE_S) -> list[Any]:
    """Receive and acknowledge until all wanted bodies arrived; fail for a body that its own property contradicts."""
    found: list[Any] = []
    seen: set[str] = set()
    deadline = time.monotonic() + patience_s
    while not wanted <= seen and time.monotonic() < deadline:
        for message in consumer.receive(32, INVISIBLE_S) or []:
            consumer.ack(message)
            if message.properties.get("run") != run.run_id:
                continue
            if message.properties.get("sha") != digest(message.body):
                raise AssertionError(f"the body of {message.message_id} changed")
            found.append(message)
            seen.add(digest(message.body))
    return found


def verdict(flow: str, sent: set[str], received: list[str], note: str = "", *, is_ok: bool = True) -> dict[str, Any]:
    ok = is_ok and sent == set(received)
    return {
        "flow": flow,
        "ok": ok,
        "sent": len(sent),
        "received": len(set(received)),
        "copies": len(received),
        "note": note,
    }


# -- flows -------------------------------------------------------------------------------------------------------------


def normal(run: Run) -> dict[str, Any]:
    consumer, producer = run.consumer("normal", "normal"), run.producer("normal")
    sent = set()
    for index in range(run.count):
        message = run.message("normal", tag="a", keys=f"key-{index}")
        producer.send(message)
        sent.add(digest(message.body))
    found = receive_all(run, consumer, sent)
    is_ok = all(one.tag == "a" and one.delivery_attempt == 1 for one in found)
    consumer.shutdown()
    producer.shutdown()
    return verdict("normal", sent, [digest(one.body) for one in found], is_ok=is_ok)


def filters(run: Run, flow: str, expression: Any) -> dict[str, Any]:
    consumer, producer = run.consumer("normal", flow, expression), run.producer("normal")
    wanted = set()
    for index in range(run.count):
        message = run.message("normal", tag=("red", "green", "blue")[index % 3])
        message.add_property("price", str(index % 10))
        producer.send(message)
        if (message.tag == "red") if flow == "tag" else (index % 10 > 5):
            wanted.add(digest(message.body))
    found = receive_all(run, consumer, wanted)
    late = receive_all(run, consumer, {"none"}, patience_s=6)  # nothing else may arrive
    consumer.shutdown()
    producer.shutdown()
    return verdict(flow, wanted, [digest(one.body) for one in (*found, *late)])


def tag(run: Run) -> dict[str, Any]:
    return filters(run, "tag", FilterExpression("red"))


def sql(run: Run) -> dict[str, Any]:
    return filters(run, "sql", FilterExpression("price > 5", FilterType.SQL))


def push(run: Run) -> dict[str, Any]:
    received: list[str] = []
    failed_once: set[str] = set()
    lock = threading.Lock()

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            key = digest(message.body)
            if message.properties.get("run") != run.run_id:
                return ConsumeResult.SUCCESS
            with lock:
                if key[0] in "01" and key not in failed_once:
                    failed_once.add(key)
                    return ConsumeResult.FAILURE
                received.append(key)
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        run.configuration, run.group("push"), Listener(), {run.topic("normal"): FilterExpression("push")}
    )
    consumer.startup()
    time.sleep(3)
    producer, sent = run.producer("normal"), set()
    for _ in range(run.count):
        message = run.message("normal", tag="push")
        producer.send(message)
        sent.add(digest(message.body))
    wait_for(lambda: sent <= set(received))
    consumer.shutdown()
    producer.shutdown()
    return verdict("push", sent, received, f"{len(failed_once)} failed once")


def fifo(run: Run) -> dict[str, Any]:
    order: dict[str, list[int]] = {}
    received: list[str] = []
    lock = threading.Lock()

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            if message.properties.get("run") != run.run_id:
                return ConsumeResult.SUCCESS
            with lock:
                order.setdefault(message.message_group, []).append(int(message.properties["number"]))
                received.append(digest(message.body))
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(run.configuration, run.group("fifo"), Listener(), {run.topic("fifo"): FilterExpression()})
    consumer.startup()
    time.sleep(3)
    producer, sent = run.producer("fifo"), set()
    for index in range(run.count):
        message = run.message("fifo", message_group=f"group-{index % 4}")
        message.add_property("number", str(index))
        producer.send(message)
        sent.add(digest(message.body))
    wait_for(lambda: sent <= set(received))
    consumer.shutdown()
    producer.shutdown()
    is_ordered = all(numbers == sorted(numbers) for numbers in order.values())
    return verdict("fifo", sent, received, "in order" if is_ordered else f"not in order: {order}", is_ok=is_ordered)


def delay(run: Run) -> dict[str, Any]:
    consumer, producer, sent, due = run.consumer("delay", "delay"), run.producer("delay"), set(), {}
    for index in range(run.count):
        at = int(time.time()) + 3 + index % 3
        message = run.message("delay", delivery_timestamp=at)
        producer.send(message)
        sent.add(digest(message.body))
        due[digest(message.body)] = at
    early: list[str] = []
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while not sent <= set(found) and time.monotonic() < deadline:
        for message in consumer.receive(32, INVISIBLE_S) or []:
            consumer.ack(message)
            key = digest(message.body)
            if message.properties.get("run") != run.run_id:
                continue
            if time.time() < due.get(key, 0):
                early.append(key)
            found.append(key)
    consumer.shutdown()
    producer.shutdown()
    return verdict("delay", sent, found, f"{len(early)} early", is_ok=not early)


def recall(run: Run) -> dict[str, Any]:
    consumer, producer = run.consumer("delay", "recall"), run.producer("delay")
    kept, recalled = set(), set()
    for index in range(run.count):
        message = run.message("delay", delivery_timestamp=int(time.time()) + 8)
        receipt = producer.send(message)
        if index % 2:
            producer.recall_message(run.topic("delay"), receipt.recall_handle)
            recalled.add(digest(message.body))
        else:
            kept.add(digest(message.body))
    found = receive_all(run, consumer, kept)
    found += receive_all(run, consumer, {"none"}, patience_s=8)
    consumer.shutdown()
    producer.shutdown()
    return verdict("recall", kept, [digest(one.body) for one in found], f"{len(recalled)} recalled")


def transaction(run: Run) -> dict[str, Any]:
    decisions = {0: TransactionResolution.COMMIT, 1: TransactionResolution.ROLLBACK}
    checked: list[str] = []

    class Checker(TransactionChecker):  # type: ignore[misc]
        def check(self, message: Any) -> Any:
            checked.append(digest(message.body))
            return decisions[int(message.properties["number"]) % 2]

    consumer = run.consumer("transaction", "transaction")
    producer, committed = run.producer("transaction", Checker()), set()
    for index in range(run.count):
        message = run.message("transaction")
        message.add_property("number", str(index))
        opened = producer.begin_transaction()
        producer.send(message, opened)
        if index % 2 == 0:
            committed.add(digest(message.body))
        if index % 4 < 2:  # the others are left to the checker
            opened.commit() if index % 2 == 0 else opened.rollback()
    found = receive_all(run, consumer, committed, patience_s=180)
    consumer.shutdown()
    producer.shutdown()
    note = f"{len(checked)} checks"
    return verdict("transaction", committed, [digest(one.body) for one in found], note, is_ok=bool(checked))


def invisible(run: Run) -> dict[str, Any]:
    """A changed invisible time brings a message back, with one more attempt; the old receipt has no effect then."""
    consumer, producer = run.consumer("normal", "invisible", FilterExpression("inv")), run.producer("normal")
    message = run.message("normal", tag="inv")
    producer.send(message)
    first = wait_for_message(run, consumer)
    consumer.change_invisible_duration(first, 3)
    started = time.monotonic()
    second = wait_for_message(run, consumer)
    waited = time.monotonic() - started
    consumer.ack(second)
    consumer.shutdown()
    producer.shutdown()
    key = digest(message.body)
    is_ok = second.delivery_attempt == 2 and 1 < waited < 60
    return verdict("invisible", {key}, [digest(second.body)], f"back after {waited:.1f} s", is_ok=is_ok)


def priority(run: Run) -> dict[str, Any]:
    consumer, producer, sent = run.consumer("priority", "priority"), run.producer("priority"), set()
    for index in range(run.count):
        message = run.message("priority", priority=index % 8)
        producer.send(message)
        sent.add(digest(message.body))
    found = receive_all(run, consumer, sent)
    consumer.shutdown()
    producer.shutdown()
    return verdict("priority", sent, [digest(one.body) for one in found])


def wait_for(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def wait_for_message(run: Run, consumer: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in consumer.receive(1, INVISIBLE_S) or []:
            if message.properties.get("run") == run.run_id:
                return message
            consumer.ack(message)
    raise AssertionError("no message arrived")


FLOWS: dict[str, Callable[[Run], dict[str, Any]]] = {
    one.__name__: one for one in (normal, tag, sql, push, fifo, delay, recall, transaction, invisible, priority)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoints")
    parser.add_argument("suffix")
    parser.add_argument("messages", type=int)
    parser.add_argument("flows", nargs="*", default=list(FLOWS))
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    options = parser.parse_args()
    run, is_ok = Run(options), True
    for name in options.flows:
        try:
            run.run_id = uuid.uuid4().hex
            result = FLOWS[name](run)
        except Exception as error:  # noqa: BLE001  the verdict of this flow; the others run
            result = {"flow": name, "ok": False, "note": f"{type(error).__name__}: {error}"}
        is_ok &= bool(result["ok"])
        print(json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0 if is_ok else 1)  # the SDK leaves threads behind


if __name__ == "__main__":
    main()
