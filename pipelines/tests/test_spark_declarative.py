"""The sample of docs/spark-declarative.md, run by `spark-pipelines` with real brokers, and killed in its middle."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyspark")
from spark_kit.connect import ConnectServer, Session, connect_server, spark_environment, wait_until
from spark_kit.processes import group

from gantry_client import Message
from gantry_client.sync import Admin, Producer, PullConsumer

pytestmark = [pytest.mark.verify, pytest.mark.needs_spark]

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLE: Final = ROOT / "pipelines" / "samples" / "declarative"
ROWS: Final = Path(__file__).with_name("spark_kit") / "connect_rows.py"
DEADLINE_S: Final = 240.0
DATA: Final = "/tmp/gantry-orders"
CUSTOMERS: Final = ("ann", "bob", "cid")
Order = tuple[str, int, str]


def copy_sample(folder: Path, name_server: str) -> Path:
    """Copy the project, with this test's name server and folders, and with small batches."""
    project = folder / "project"
    shutil.copytree(SAMPLE, project)
    for name in ("spark-pipeline.yml", "spark-defaults.conf"):
        text = (project / name).read_text()
        assert DATA in text
        text = text.replace(DATA, str(folder / "data")).replace("127.0.0.1:9876", name_server)
        (project / name).write_text(text.replace('rowsPerBatch: "100000"', 'rowsPerBatch: "40"'))
    return project


def send_orders(name_server: str, numbers: range) -> list[Order]:
    """Send an order for each number; the number is its amount."""
    orders = [(CUSTOMERS[n % 3], n, f"2026-11-01 10:{n % 4:02d}:30") for n in numbers]
    with Producer(name_server) as producer:
        for customer, amount, placed in orders:
            body = {"customer": customer, "amount": amount, "placed": placed}
            producer.send(Message("orders", json.dumps(body).encode()))
    return orders


def large_orders(name_server: str) -> Counter[Order]:
    """Return what a consumer reads from the topic of the sink."""
    found: Counter[Order] = Counter()
    with PullConsumer(name_server, "readers") as consumer:
        for queue in consumer.queues("large-orders"):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.fetch(queue, offset)
                for message in result.messages:
                    order = json.loads(message.body)
                    found[order["customer"], order["amount"], order["placed"][:19].replace("T", " ")] += 1
                offset = result.next_offset
    return found


def is_inside_batch(checkpoint: Path, batch: int) -> bool:
    """Return whether a flow has planned this batch, and has not committed it."""
    return (checkpoint / "offsets" / str(batch)).exists() and not (checkpoint / "commits" / str(batch)).exists()


def start_run(project: Path, server: ConnectServer, environment: dict[str, str], output: Path) -> Session:
    """Start a run of the pipeline, as the page shows it."""
    with output.open("ab") as stream:
        return Session(["spark-pipelines", "--remote", server.url, "run"], environment, project, stream)


def finish_run(project: Path, server: ConnectServer, environment: dict[str, str], output: Path) -> None:
    """Run the pipeline until it is complete."""
    run = start_run(project, server, environment, output)
    try:
        assert run.process.wait(DEADLINE_S) == 0, output.read_text() + server.log.read_text()[-4000:]
        assert "Run is COMPLETED." in output.read_text()
    finally:
        run.kill()


def kill_run(
    project: Path, server: ConnectServer, environment: dict[str, str], output: Path, when: Callable[[], bool]
) -> None:
    """Start a run, and kill its program and the server as soon as the condition holds."""
    run = start_run(project, server, environment, output)
    try:
        wait_until(lambda: when() or run.process.poll() is not None, DEADLINE_S, "the run reaches the kill")
        server.kill()
        assert run.process.poll() is None, output.read_text()
    finally:
        run.kill()


@pytest.mark.parametrize(("flow", "batch"), [("spark_catalog/default/orders/orders", 1), ("large_orders/*", 0)])
def test_killed_pipeline_has_each_order_once(flow: str, batch: int, tmp_path: Path) -> None:
    """A run that is killed inside a batch of the table or of the sink, and its repetition, process each order once."""
    with ExitStack() as stack:
        brokers = stack.enter_context(group(tmp_path / "brokers", slaves=0, with_sidecars=False))
        name_server = brokers.name_server
        with Admin(name_server) as admin:
            wait_until(lambda: any(one.is_master for one in admin.wait(admin.brokers.all())), DEADLINE_S, "a master")
            for topic in ("orders", "large-orders"):
                admin.wait(admin.topics.create(topic, queues=2))
        sent = send_orders(name_server, range(200))
        project, output = copy_sample(tmp_path, name_server), tmp_path / "output"
        environment = spark_environment(SPARK_CONF_DIR=str(project))
        server = stack.enter_context(connect_server(tmp_path / "server", environment))
        checkpoints = tmp_path / "data" / "checkpoints" / "_checkpoints"
        kill_run(
            project, server, environment, output,
            lambda: any(is_inside_batch(one, batch) for one in checkpoints.glob(f"{flow}/0")),
        )  # fmt: skip
        (killed,) = checkpoints.glob(f"{flow}/0")
        assert is_inside_batch(killed, batch), "the batch ended before the kill"

        sent += send_orders(name_server, range(200, 230))
        server.start()
        finish_run(project, server, environment, output)

        lines = server.run(
            sys.executable, str(ROWS),
            "select customer, amount, placed from orders",
            "select minute.start, customer, orders, amount from orders_per_minute",
        ).splitlines()  # fmt: skip
        orders, minutes = (json.loads(line) for line in lines)
        assert Counter((customer, amount, placed) for customer, amount, placed in orders) == Counter(sent)
        assert sorted(minutes) == totals(sent)
        assert large_orders(name_server) == Counter(order for order in sent if order[1] >= 100)


def totals(orders: list[Order]) -> list[list[str | int]]:
    """Return count and sum per minute and customer."""
    groups: dict[tuple[str, str], list[int]] = {}
    for customer, amount, placed in orders:
        groups.setdefault((f"{placed[:17]}00", customer), []).append(amount)
    return sorted([minute, customer, len(all_), sum(all_)] for (minute, customer), all_ in groups.items())
