"""One flow of the Python SDK: its names, the helpers that send and receive, and the tally that judges."""

import argparse
import hashlib
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from rocketmq.v5.exception import BadRequestException, InternalErrorException

AWAIT_S = 6
RECALLABLE_S = 12
INVISIBLE_S = 60
REQUEST_S = 10
BATCH = 32
SENDERS = 16
RECEIVERS = 4
PATIENCE_S = 90.0
SLOWEST = 40
"""The number of messages a second that a run may at least expect of a busy machine."""
JOINING_S = 4
"""The time in which a push consumer begins to receive: a new group starts at the end of a queue."""


class Tally:
    """Counts what arrived of one flow, and what was wrong with it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._lock = threading.Lock()
        self._arrived = 0
        self._is_open = True
        self.wanted: set[str] = set()
        self.copies: dict[str, int] = {}
        self.wrong: list[str] = []
        self.check: Callable[[Any], str | None] = lambda _view: None
        """Returns a further fault of a message of this flow."""

    def want(self, message: Any) -> Any:
        with self._lock:
            self.wanted.add(message.properties["sha"])
        return message

    def close(self) -> None:
        """End the adding of wanted messages: from now on the tally can be complete."""
        self._is_open = False

    def is_own(self, view: Any) -> bool:
        """Return whether a message is of this flow; an altered one is noted."""
        if view.properties.get("run") != self._run_id:
            return False
        if view.properties.get("sha") != digest(view.body):
            self.wrong.append(f"the body of {view.message_id} changed")
        return True

    def add(self, view: Any) -> None:
        if not self.is_own(view):
            return
        fault, key = self.check(view), view.properties["sha"]
        with self._lock:
            self.wrong += [fault] if fault else []
            self.copies[key] = self.copies.get(key, 0) + 1
            self._arrived += self.copies[key] == 1 and key in self.wanted

    @property
    def is_complete(self) -> bool:
        return not self._is_open and self._arrived == len(self.wanted)

    def judge(self, note: str = "") -> dict[str, Any]:
        """Return the verdict: every wanted message arrived, no other one, and nothing was wrong."""
        is_ok = self._arrived == len(self.wanted) == len(self.copies) and not self.wrong
        faults = f"; {len(self.wrong)} wrong, the first: {self.wrong[0]}" if self.wrong else ""
        return {
            "ok": is_ok,
            "expected": len(self.wanted),
            "received": len(self.copies),
            "copies": sum(self.copies.values()),
            "note": note + faults,
        }


class Run:
    """One flow: the connection, and helpers that send and receive."""

    def __init__(self, options: argparse.Namespace, flow: str, count: int) -> None:
        self._suffix: str = options.suffix
        self._run_id = uuid.uuid4().hex
        credentials = Credentials(options.access_key, options.secret_key) if options.access_key else Credentials()
        self._configuration = ClientConfiguration(options.endpoints, credentials, request_timeout=REQUEST_S)
        self.flow, self.count = flow, count
        self.patience_s = PATIENCE_S + count / SLOWEST
        self.found = Tally(self._run_id)

    def topic(self, kind: str) -> str:
        return f"sdk-{kind}{self._suffix}"

    @property
    def group(self) -> str:
        return f"sdk-{self.flow}{self._suffix}"

    def producer(self, kind: str, checker: Any = None) -> Any:
        producer = Producer(self._configuration, (self.topic(kind),), checker=checker)
        producer.startup()
        return producer

    def consumer(self, kind: str, expression: Any = None) -> Any:
        """Start a simple consumer, and receive once: a group is known to a queue from its first receive on."""
        subscription = {self.topic(kind): expression or FilterExpression()}
        consumer = SimpleConsumer(self._configuration, self.group, subscription, await_duration=AWAIT_S)
        consumer.startup()
        receive_first(consumer)
        return consumer

    def push_consumer(self, kind: str, tag: str, handle: Callable[[Any], Any], success: Any) -> Any:
        """Start a push consumer whose handler gets the messages of this flow; others are acknowledged."""
        found = self.found

        class Listener(MessageListener):  # type: ignore[misc]
            def consume(self, message: Any) -> Any:
                return handle(message) if found.is_own(message) else success

        subscription = {self.topic(kind): FilterExpression(tag)}
        consumer = PushConsumer(self._configuration, self.group, Listener(), subscription)
        consumer.startup()
        time.sleep(JOINING_S)
        return consumer

    def message(self, kind: str, index: int, **fields: Any) -> Any:
        """Build a message whose properties contain the digest of its body and the id of this flow."""
        message = Message()
        message.topic = self.topic(kind)
        message.body = f"{self.flow} {index} {uuid.uuid4()} ".encode() * (1 + index % 16)
        for name, value in fields.items():
            setattr(message, name, value)
        for name, value in {"sha": digest(message.body), "run": self._run_id, "number": str(index)}.items():
            message.add_property(name, value)
        return message

    def send_all(self, send: Callable[[int], None], lanes: int = SENDERS) -> None:
        """Call `send` for each number below the count. Numbers of one lane are sent in order, one after the other."""

        def send_lane(lane: int) -> None:
            for index in range(lane, self.count, lanes):
                send(index)

        with ThreadPoolExecutor(lanes) as pool:
            list(pool.map(send_lane, range(lanes)))
        self.found.close()

    def receive_all(self, consumer: Any, patience_s: float | None = None, receivers: int = RECEIVERS) -> None:
        """Receive and acknowledge until every wanted message has arrived, or the time is over."""
        deadline = time.monotonic() + (patience_s or self.patience_s)

        def receive_some(_number: int) -> None:
            while not self.found.is_complete and time.monotonic() < deadline:
                receive_and_ack(consumer, self.found.add)

        with ThreadPoolExecutor(receivers) as pool:
            list(pool.map(receive_some, range(receivers)))

    def receive_more(self, consumer: Any, longer_s: float) -> None:
        """Receive for some time after the last wanted message, so that an unwanted one is noticed."""
        deadline = time.monotonic() + longer_s
        while time.monotonic() < deadline:
            receive_and_ack(consumer, self.found.add)

    def wait_for_all(self) -> None:
        """Wait until a push consumer has received every wanted message, or the time is over."""
        deadline = time.monotonic() + self.patience_s
        while not self.found.is_complete and time.monotonic() < deadline:
            time.sleep(0.05)


def receive_first(consumer: Any) -> None:
    """Receive until a call succeeds: proxies fail receives that overtake the settings of the client.

    Gantry's proxy calls this a bad request, and RocketMQ's an internal error.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            receive_and_ack(consumer, lambda _view: None)
            return
        except (BadRequestException, InternalErrorException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def receive_and_ack(consumer: Any, handle: Callable[[Any], None]) -> None:
    for view in consumer.receive(BATCH, INVISIBLE_S) or []:
        handle(view)
        consumer.ack(view)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
