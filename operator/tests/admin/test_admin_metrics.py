"""Metrics: well formed for Prometheus, with the names of RocketMQ's exporter, limited, and equal to the broker's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gantry_admin.inventory import Inventory, QueueEnds
from gantry_admin.metrics import memory_metrics, pop_metrics, refusals
from gantry_admin.metrics_rocketmq import ROWS_MAX, TOPICS_MAX, _groups, _topics
from gantry_status import RefusalReason
from gantry_wire.commands.admin import TopicConfig

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker, sidecar_process(store) as sidecar:
        broker.send(7)
        wait_for(lambda: sent_of(sidecar) == 7, "all that was sent is known")
        yield broker, sidecar


def sent_of(sidecar: SidecarChild) -> float | None:
    """Return the offset of the topic in the sidecar's last inventory."""
    found = samples(sidecar.get("/metrics").text)
    return next((value for name, value in found.items() if name.startswith("rocketmq_producer_offset[")), None)


def parse_text(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def parse_openmetrics(text: str) -> list[Metric]:
    return list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in parse_text(text) for sample in family.samples
    }  # fmt: skip


@pytest.mark.needs_prometheus
def test_promtool_accepts_the_metrics(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """`promtool check metrics` is clean: names, units, help texts and types."""
    _, sidecar = pair

    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=sidecar.get("/metrics").text,
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_openmetrics_is_served_on_request(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """With Prometheus' Accept header the answer is OpenMetrics, to its last line, and has all metrics of the other."""
    _, sidecar = pair

    answer = sidecar.get("/metrics", Accept=OPENMETRICS)

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    families = {family.name for family in parse_openmetrics(answer.text)}
    assert {family.name for family in parse_text(sidecar.get("/metrics").text)} <= families | {
        name + "_total" for name in families
    }


def test_metrics_match_the_broker(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """Offsets, topics and the broker's own rates are those of the broker, under the exporter's names."""
    broker, sidecar = pair
    wait_for(lambda: sidecar.get("/v1/status").json()["wrote"] == broker.log_end, "all of it is published")
    own = "[('broker', 'test-broker'), ('cluster', 'TestCluster')"
    rate = f"rocketmq_broker_tps{own}]"  # only from the broker's answer, which a busy machine delays
    wait_for(lambda: rate in samples(sidecar.get("/metrics").text), "the broker has answered")

    found = samples(sidecar.get("/metrics").text)

    assert found[f"rocketmq_brokeruntime_commitlog_maxoffset{own}]"] == broker.log_end
    assert found[f"rocketmq_producer_offset{own}, ('topic', 'TopicTest')]"] == 7
    assert found["gantry_log_position_bytes[('position', 'wrote')]"] == broker.log_end
    assert found["gantry_role[('role', 'master')]"] == 1
    assert found["gantry_broker_loop_running[]"] == 1
    assert rate in found


def test_every_refusal_reason_has_a_counter() -> None:
    """Refused requests are counted by reason, with a zero if there were none or the broker is older."""
    family = refusals((3, 0, 4))

    values = {sample.labels["reason"]: sample.value for sample in family.samples}

    assert values == {reason.label: 0 for reason in RefusalReason} | {"queue_timeout": 3, "waiting_full": 4}
    assert {sample.name for sample in family.samples} == {"gantry_refused_requests_total"}


def test_number_of_labels_is_bounded() -> None:
    """Topics and rows have a maximum; the number of those left out is a metric."""
    names = [f"topic-{number:05d}" for number in range(TOPICS_MAX + 40)]
    inventory = Inventory(
        topics={name: TopicConfig(topic_name=name) for name in names},
        queues={name: {0: QueueEnds(0, 9, None)} for name in names},
        groups=("g1", "g2", "g3", "g4", "g5", "g6"),
        consumed={f"g{number}": {(name, 0): 3 for name in names} for number in range(1, 7)},
        topics_left_out=2,
    )

    by_name = {family.name: family for family in [*_topics(inventory, ["c", "b"]), *_groups(inventory, ["c", "b"])]}

    assert len(by_name["rocketmq_producer_offset"].samples) == TOPICS_MAX
    assert by_name["gantry_topics_left_out"].samples[0].value == 42
    assert len(by_name["rocketmq_group_diff"].samples) == ROWS_MAX
    assert by_name["gantry_groups_left_out"].samples[0].value == 6 * len(names) - ROWS_MAX
    assert by_name["rocketmq_group_diff"].samples[0].value == 6


def test_pop_consumption_is_reported() -> None:
    """The state and the counters of popped messages, as the broker counts them; the lag in seconds."""
    runtime = {
        "popInflightMessages": "12", "popOpenCheckpoints": "3", "popReviveLagMillis": "1500",
        "popUnflushedOffsets": "0",
        "popMessages": "40", "popAckedMessages": "20", "popRedeliveredMessages": "7", "popDeadLetters": "1",
        "popExpiredMessages": "0",
    }  # fmt: skip

    found = {family.name: family for family in pop_metrics(runtime)}

    assert {name: family.samples[0].value for name, family in found.items() if family.type == "gauge"} == {
        "gantry_pop_inflight_messages": 12, "gantry_pop_checkpoints": 3, "gantry_pop_revive_lag_seconds": 1.5,
        "gantry_pop_unflushed_offsets": 0,
    }  # fmt: skip
    counts = {sample.labels["outcome"]: sample.value for sample in found["gantry_pop_messages"].samples}
    assert counts == {"popped": 40, "acked": 20, "redelivered": 7, "dead_letter": 1, "expired": 0}
    assert [len(family.samples) for family in pop_metrics({})] == [0] * 5, "a broker without pop consumption"


def test_costs_of_connections_are_reported() -> None:
    """Bytes of unfinished frames and unread replies, and closed connections by reason, as the broker counts them."""
    runtime = {"unfinishedFrameBytes": "4096", "unreadReplyBytes": "0", "connectionsClosed": "idle=3 frame_budget=17"}

    found = {family.name: family for family in memory_metrics(runtime)}

    assert found["gantry_unfinished_frame_bytes"].samples[0].value == 4096
    assert found["gantry_unread_reply_bytes"].samples[0].value == 0
    closed = {sample.labels["reason"]: sample.value for sample in found["gantry_connections_closed"].samples}
    assert closed == {"idle": 3, "frame_budget": 17}
    assert [len(family.samples) for family in memory_metrics({})] == [0, 0, 0], "a broker without these counters"
