"""Sends and receives through a gRPC proxy with RocketMQ's Python SDK until it shall stop, and records every outcome.

    python sdk_load.py ENDPOINTS TOPIC GROUP DIRECTORY

Files in DIRECTORY: `attempted.txt`, `acknowledged.txt` and `received.txt` have one line for each message (the digest of
its body, and the time in microseconds); `errors.txt` has the errors of calls. `stop` ends the sends, `end` the program.
"""

import argparse
import hashlib
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

SENDERS = 4
PAUSE_S = 0.02
"""The pause between two sends of a sender: the load shall last, and not fill the disk."""
RETRY_S = 0.5
BATCH = 32
INVISIBLE_S = 15


class Record:
    """A file with one line for each event. Any thread may write."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a")
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            self._file.write(f"{text} {int(time.time() * 1e6)}\n")
            self._file.flush()


class Load:
    """The senders and the receiver of one run, and their records."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._topic, self._group, self._folder = options.topic, options.group, Path(options.directory)
        self._configuration = ClientConfiguration(options.endpoints, Credentials())
        self._run_id = uuid.uuid4().hex
        self._attempted, self._acknowledged, self._received, self._errors = (
            Record(self._folder / f"{name}.txt") for name in ("attempted", "acknowledged", "received", "errors")
        )

    def run(self) -> None:
        """Send until the file `stop` exists, and receive until `end` does."""
        consumer = SimpleConsumer(self._configuration, self._group, {self._topic: FilterExpression()})
        consumer.startup()
        self._receive_first(consumer)
        receiver = threading.Thread(target=self._receive, args=(consumer,))
        receiver.start()
        senders = [threading.Thread(target=self._send) for _ in range(SENDERS)]
        for thread in senders:
            thread.start()
        for thread in senders:
            thread.join()
        (self._folder / "sent").touch()
        receiver.join()

    def _receive_first(self, consumer: Any) -> None:
        """Receive until a call succeeds: a new group begins at the end of each queue, at its first receive."""
        while not (self._folder / "end").exists():
            try:
                consumer.receive(BATCH, INVISIBLE_S)
                return
            except Exception as error:  # noqa: BLE001  RocketMQ's proxy fails receives that overtake the settings
                self._errors.write(f"first receive {type(error).__name__} {error}".replace("\n", " "))
                time.sleep(RETRY_S)

    def _send(self) -> None:
        producer = Producer(self._configuration, (self._topic,))
        producer.startup()
        while not (self._folder / "stop").exists():
            message, key = self._message()
            self._attempted.write(key)
            try:
                producer.send(message)
            except Exception as error:  # noqa: BLE001  the outcome is unknown; the next message is another one
                self._errors.write(f"send {type(error).__name__} {error}".replace("\n", " "))
                time.sleep(RETRY_S)
            else:
                self._acknowledged.write(key)
            time.sleep(PAUSE_S)

    def _message(self) -> tuple[Any, str]:
        """Return a message with a body of its own, and the digest of the body."""
        message = Message()
        message.topic = self._topic
        message.body = str(uuid.uuid4()).encode() * 8
        key = hashlib.sha256(message.body).hexdigest()
        message.add_property("sha", key)
        message.add_property("run", self._run_id)
        return message, key

    def _receive(self, consumer: Any) -> None:
        while not (self._folder / "end").exists():
            try:
                for message in consumer.receive(BATCH, INVISIBLE_S) or []:
                    if message.properties.get("run") == self._run_id:
                        key = hashlib.sha256(message.body).hexdigest()
                        is_whole = message.properties.get("sha") == key
                        self._received.write(key if is_whole else f"altered-{message.message_id}")
                    consumer.ack(message)
            except Exception as error:  # noqa: BLE001  what was not acknowledged comes again
                self._errors.write(f"receive {type(error).__name__} {error}".replace("\n", " "))
                time.sleep(RETRY_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("endpoints", "topic", "group", "directory"):
        parser.add_argument(name)
    Load(parser.parse_args()).run()
    os._exit(0)  # the SDK leaves threads behind


if __name__ == "__main__":
    main()
