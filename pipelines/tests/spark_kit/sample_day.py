"""Tables of an invented day, for the report: five topics, a morning peak, a stall, a hot queue, and a slow group."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from gantry_pipelines.analytics.tables import TABLES, Tables

BEGIN: Final = datetime(2026, 11, 22, 4, 0, tzinfo=UTC)
TOPICS: Final = (("orders", 900), ("payments", 420), ("clicks", 1600), ("audit_trail", 60), ("mail", 25))
QUEUES: Final = 4


def write_sample_day(folder: Path, *, minutes: int = 540, step_minutes: int = 1, seed: int = 8) -> Tables:
    """Write the tables as a run does."""
    rng = random.Random(seed)
    tables = Tables(folder)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for at in range(0, minutes, step_minutes):
        for topic, base in TOPICS:
            _window(rows, rng, topic, base, at, step_minutes)
    rows["consumer_lag"] = list(_lags(rng, minutes))
    found = {name: pa.Table.from_pylist(some, schema=TABLES[name].schema) for name, some in rows.items()}
    with tables:
        tables.write("scene", found, {"writtenTo": 0})
    return tables


def end_ms(minutes: int = 540) -> int:
    """Return the end of the last window in milliseconds."""
    return int((BEGIN + timedelta(minutes=minutes)).timestamp() * 1000)


def _window(
    rows: dict[str, list[dict[str, Any]]], rng: random.Random, topic: str, base: int, at: int, step: int
) -> None:
    begin = BEGIN + timedelta(minutes=at)
    bounds = {"windowBegin": begin, "windowEnd": begin + timedelta(minutes=step), "topic": topic}
    wave = 0.35 + math.exp(-(((at - 290) / 130) ** 2)) + 0.08 * math.sin(at / 23)
    is_stalled = 352 <= at < 364 and topic in ("orders", "payments")
    messages = 0 if is_stalled else int(base * 60 * step * wave * rng.uniform(0.93, 1.07))
    if not messages:
        return
    size = {"orders": 1_240, "payments": 820, "clicks": 310}.get(topic, 2_100)
    weights = [3.2 if (topic, queue) == ("orders", 2) and at > 200 else 1.0 for queue in range(QUEUES)]
    shares = [weight / sum(weights) for weight in weights]
    seconds = 60.0 * step
    rows["throughput"].append({
        **bounds, "broker": "broker-a", "messages": messages, "bytes": messages * size,
        "bodyBytes": messages * (size - 180), "messagesPerSecond": messages / seconds,
        "bytesPerSecond": messages * size / seconds,
    })  # fmt: skip
    slow = 60.0 if 364 <= at < 384 and topic in ("orders", "payments") else 1.0
    p50 = (0.9 + wave) * rng.uniform(0.9, 1.1)
    rows["latency"].append({
        **bounds, "messages": messages, "p50Ms": p50, "p95Ms": p50 * 3.1 * math.sqrt(slow), "p99Ms": p50 * 6 * slow,
        "maxMs": p50 * 14 * slow, "clockSkewed": rng.choice((0, 0, 0, 2)),
    })  # fmt: skip
    for queue, share in enumerate(shares):
        rows["hot_queues"].append({
            **bounds, "broker": "broker-a", "queue": queue, "messages": int(messages * share),
            "bytes": int(messages * share) * size, "share": share, "timesEven": share * QUEUES, "rank": queue + 1,
        })  # fmt: skip
    for rank in range(1, 6):
        count = int(messages / (rank + 3) / 9)
        key = f"customer-{1_000 + (rank * 37 + len(topic)) % 97}"
        rows["hot_keys"].append({**bounds, "key": key, "messages": count, "bytes": count * size, "rank": rank})


def _lags(rng: random.Random, minutes: int) -> Iterator[dict[str, Any]]:
    for at in range(0, minutes + 1, 10):
        behind = max(0, (at - 180) * 9_000 if at < 330 else (480 - at) * 9_000)
        for group, topic, lag in (
            ("billing", "payments", rng.randrange(400)),
            ("warehouse", "orders", behind + rng.randrange(900)),
        ):
            for queue in range(QUEUES):
                yield {
                    "sampledAt": BEGIN + timedelta(minutes=at), "group": group, "topic": topic, "broker": "broker-a",
                    "queue": queue, "committed": at * 1_000, "end": at * 1_000 + lag // QUEUES,
                    "lagMessages": lag // QUEUES, "lagSeconds": lag / 900,
                }  # fmt: skip
