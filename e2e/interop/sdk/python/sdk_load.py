"""Sends and receives through a gRPC proxy with RocketMQ's Python SDK until it is told to stop, and records every outcome.

    python sdk_load.py ENDPOINTS SUFFIX DIRECTORY

Files in DIRECTORY: `attempted.txt`, `acknowledged.txt` and `received.txt` have one line for each message (the digest of
its body, and the time in microseconds); `errors.txt` has the errors of calls. `stop` ends the sends, `end` the program.
"""

import argparse
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

import sdk_flows

SENDERS = 4
PAUSE_S = 0.02
"""The pause between two sends of a sender: the load shall last, not fill the disk."""
RETRY_S = 0.5


class Record:
    """A file with one line for each event. Any thread may write."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a")
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            self._file.write(f"{text} {int(time.time() * 1e6)}\n")
            self._file.flush()


def send(run: sdk_flows.Run, folder: Path, attempted: Record, acknowledged: Record, errors: Record) -> None:
    producer = run.producer("normal")
    while not (folder / "stop").exists():
        message = run.message("normal", tag="load")
        key = sdk_flows.digest(message.body)
        attempted.write(key)
        try:
            producer.send(message)
        except Exception as error:  # noqa: BLE001  unknown outcome; the next message is another one
            errors.write(f"send {type(error).__name__}: {str(error).splitlines()[:1]}")
            time.sleep(RETRY_S)
        else:
            acknowledged.write(key)
        time.sleep(PAUSE_S)


def receive(run: sdk_flows.Run, consumer: Any, folder: Path, received: Record, errors: Record) -> None:
    while not (folder / "end").exists():
        try:
            for message in consumer.receive(32, sdk_flows.INVISIBLE_S) or []:
                key = sdk_flows.digest(message.body)
                if message.properties.get("sha") != key:
                    key = f"altered-{message.message_id}"
                if message.properties.get("run") == run.run_id:
                    received.write(key)
                consumer.ack(message)
        except Exception as error:  # noqa: BLE001  what was not acknowledged comes again
            errors.write(f"receive {type(error).__name__}: {str(error).splitlines()[:1]}")
            time.sleep(RETRY_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("endpoints", "suffix", "directory"):
        parser.add_argument(name)
    options = parser.parse_args(namespace=argparse.Namespace(messages=0, access_key=None, secret_key=None))
    run, folder = sdk_flows.Run(options), Path(options.directory)
    run.run_id = uuid.uuid4().hex
    records = {name: Record(folder / f"{name}.txt") for name in ("attempted", "acknowledged", "received", "errors")}
    consumer = run.consumer("normal", "load")
    receiver = threading.Thread(target=receive, args=(run, consumer, folder, records["received"], records["errors"]))
    sender_arguments = (run, folder, records["attempted"], records["acknowledged"], records["errors"])
    senders = [threading.Thread(target=send, args=sender_arguments) for _ in range(SENDERS)]
    for thread in (receiver, *senders):
        thread.start()
    for thread in senders:
        thread.join()
    (folder / "sent").touch()
    receiver.join()
    os._exit(0)  # the SDK leaves threads behind


if __name__ == "__main__":
    main()
