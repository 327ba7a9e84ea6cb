"""Rows about brokers: replication, flush, write buffers, lines of broker.conf, tables, pods."""

from __future__ import annotations

from typing import Final

from edit_world.making import (
    ALERTS,
    ARGUMENTS,
    CONFIG,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    NO,
    POD,
    START_SETTINGS,
    STATUS,
    YES,
    edit_row,
    pod_row,
    refused_row,
    resized_row,
    roll_row,
    table_row,
)
from edit_world.row import ABSENT, Effect, Fields, Row, Shown, spec_part

TWO_SLAVES: Final[Fields] = {"slaves": 2}
BUFFERED: Final[Fields] = {"writeBuffer": {"medium": "Memory"}}
ON_FAST_DISKS: Final = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 1,
                "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]},
            }
        ]
    }
}
OVER_DISKS: Final = {
    "maxSkew": 2,
    "topologyKey": "disk",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"gantry.dev/group": "orders"}},
}
"""A constraint that spreads pods over the label `disk` of nodes."""

LIVE_SETTINGS: Final[dict[str, tuple[str, str]]] = {
    "autoCreateTopicEnable": ("true", "false"),
    "autoCreateSubscriptionGroup": ("true", "false"),
    "maxBatchMessages": ("10000", "5000"),
    "sendThreadPoolQueueCapacity": ("10000", "9000"),
    "waitTimeMillsInSendQueue": ("60000", "50000"),
    "osPageCacheBusyTimeOutMills": ("1000", "2000"),
    "pullThreadPoolQueueCapacity": ("100000", "90000"),
    "maxHeldPullsPerConnection": ("10000", "9000"),
    "maxPullBatchSize": ("1024", "512"),
    "maxTransferBytesOnMessageInMemory": ("262144", "131072"),
    "maxTransferBytesOnRequest": ("8388608", "4194304"),
    "flushConsumerOffsetInterval": ("5000", "4000"),
    "deleteWhen": ("04", "05"),
    "diskMaxUsedSpaceRatio": ("95", "94"),
    "diskSpaceCleanForciblyRatio": ("99", "98"),
    "diskSpaceWarningLevelRatio": ("99", "98"),
    "cleanResourceInterval": ("10000", "9000"),
    "slaveReadEnable": ("true", "false"),
    "accessMessageInMemoryMaxRatio": ("40", "50"),
    "enablePropertyFilter": ("false", "true"),
    "useServerSideResetOffset": ("true", "false"),
    "transactionTimeOut": ("6000", "7000"),
    "transactionCheckMax": ("15", "10"),
    "transactionCheckInterval": ("30000", "20000"),
}
"""Lines of a `broker.conf` that a running broker adopts, each before and after."""


DURABILITY: Final = (
    roll_row(
        "replication.mode", "Sync", "Async",
        Shown(CONFIG, "brokerRole", "SYNC_MASTER", "ASYNC_MASTER"),
        Shown(CONFIG, "inSyncReplicas", "2", "1"),
        Shown(STATUS, "reported_role.acks_needed", "1", "0"),
        more=DISRUPTION_BUDGET,
    ),
    edit_row(
        Effect.ROLL, "replication.inSyncReplicas", 2, 3, START_SETTINGS | DISRUPTION_BUDGET,
        Shown(CONFIG, "inSyncReplicas", "2", "3"),
        Shown(STATUS, "reported_role.acks_needed", "1", "2"),
        prerequisites=TWO_SLAVES,
    ),
    roll_row("replication.ackTimeout", "3s", "4s", Shown(CONFIG, "slaveTimeout", "3000", "4000")),
    roll_row(
        "replication.ack", "Received", "Flushed",
        Shown(CONFIG, "haAckLevel", "RECEIVED", "FLUSHED"),
    ),
    roll_row(
        "replication.maxLag", "256Mi", "128Mi",
        Shown(CONFIG, "haMaxGapNotInSync", str(256 << 20), str(128 << 20)),
        Shown(ARGUMENTS, "--max-lag", str(256 << 20), str(128 << 20)),
        more=ALERTS,
    ),
    roll_row(
        "flush.mode", "Async", "Sync",
        Shown(CONFIG, "flushDiskType", "ASYNC_FLUSH", "SYNC_FLUSH"),
        Shown(STATUS, "flush_mode", "async", "sync"),
    ),
    roll_row("flush.interval", "500ms", "200ms", Shown(CONFIG, "flushIntervalCommitLog", "500", "200")),
    roll_row(
        "writeBuffer.medium", "Off", "Memory",
        Shown(CONFIG, "transientStorePoolEnable", "false", "true"),
        Shown(STATUS, "buffer.medium", "none", "tmpfs"),
    ),
    Row(
        path="writeBuffer.medium",
        title="writeBuffer.medium: huge pages",
        before=spec_part("writeBuffer.medium", "Off"),
        after=spec_part("writeBuffer.medium", "HugePages-2Mi"),
        effect=Effect.ROLL,
        changes=START_SETTINGS,
        shown=(
            Shown(CONFIG, "transientStorePoolEnable", "false", "true"),
            Shown(POD, "spec.containers.0.resources.limits.hugepages-2Mi", ABSENT, "30Mi"),
        ),
    ),
    edit_row(
        Effect.ROLL, "writeBuffer.buffers", 3, 4, START_SETTINGS,
        Shown(CONFIG, "transientStorePoolSize", "3", "4"),
        Shown(STATUS, "buffer.buffers_total", "3", "4"),
        prerequisites=BUFFERED,
    ),
    refused_row("writeBuffer.segmentSize", "8Mi", "16Mi", "the file size of a store cannot change"),
)  # fmt: skip

TOPICS_AND_GROUPS: Final = (
    table_row(
        "topics[].name", {}, {"topics": [{"name": "added", "queues": 5}]},
        "topics.added.queues", ABSENT, "5",
    ),
    table_row(
        "topics[].queues",
        {"topics": [{"name": "widened", "queues": 4}]}, {"topics": [{"name": "widened", "queues": 6}]},
        "topics.widened.queues", "4", "6",
    ),
    table_row(
        "groups[].name", {}, {"groups": [{"name": "added", "retryMax": 7}]},
        "groups.added.retryMax", ABSENT, "7",
    ),
    table_row(
        "groups[].retryMax",
        {"groups": [{"name": "hasty", "retryMax": 16}]}, {"groups": [{"name": "hasty", "retryMax": 3}]},
        "groups.hasty.retryMax", "16", "3",
    ),
)  # fmt: skip

BROKER_SETTINGS: Final = (
    Row(
        path="broker",
        title="broker: what a running broker takes",
        before={"broker": {key: before for key, (before, _) in LIVE_SETTINGS.items()}},
        after={"broker": {key: after for key, (_, after) in LIVE_SETTINGS.items()}},
        effect=Effect.HOT,
        changes=CONFIG_MAP,
        shown=tuple(Shown(CONFIG, key, *values) for key, values in LIVE_SETTINGS.items()),
    ),
    Row(
        path="broker",
        title="broker: what is read at the start",
        before={"broker": {"messageDelayLevel": "1s 5s", "maxMessageSize": "1000000"}},
        after={"broker": {"messageDelayLevel": "1s 6s", "maxMessageSize": "900000"}},
        effect=Effect.ROLL,
        changes=START_SETTINGS,
        shown=(
            Shown(CONFIG, "messageDelayLevel", "1s 5s", "1s 6s"),
            Shown(CONFIG, "maxMessageSize", "1000000", "900000"),
        ),
    ),
    Row(
        path="broker",
        title="broker: what other fields decide",
        before={},
        after={"broker": {"brokerRole": "SLAVE"}},
        effect=Effect.REFUSED,
        refusal="a key of broker is reserved, because another field",
    ),
)
"""Rows about lines of `broker`, which are settings of brokers."""

PODS: Final = (
    resized_row(
        "resources", {"limits": {"memory": "512Mi"}}, {"limits": {"memory": "640Mi"}},
        "spec.containers.0.resources.limits.memory", "528Mi", "656Mi",
    ),
    pod_row("template.annotations", {}, {"team": "orders"}, "metadata.annotations.team", ABSENT, "orders"),
    pod_row("template.labels", {}, {"team": "orders"}, "metadata.labels.team", ABSENT, "orders"),
    pod_row("template.nodeSelector", {}, {"disk": "fast"}, "spec.nodeSelector.disk", ABSENT, "fast"),
    pod_row(
        "template.tolerations", [], [{"key": "dedicated", "operator": "Exists"}],
        "spec.tolerations?dedicated", NO, YES,
    ),
    pod_row("template.affinity", {}, ON_FAST_DISKS, "spec.affinity.nodeAffinity?fast", NO, YES),
    pod_row(
        "template.topologySpreadConstraints", [], [OVER_DISKS],
        "spec.topologySpreadConstraints?'topologyKey': 'disk'", NO, YES,
    ),
    pod_row("template.priorityClassName", "", "orders-first", "spec.priorityClassName", ABSENT, "orders-first"),
    pod_row("template.runtimeClassName", "", "sandboxed", "spec.runtimeClassName", ABSENT, "sandboxed"),
    roll_row(
        "template.terminationGracePeriod", "2m", "40s",
        Shown(CONFIG, "shutdownTimeout", "60000", "30000"),
        Shown(POD, "spec.terminationGracePeriodSeconds", "120", "40"),
    ),
)  # fmt: skip
