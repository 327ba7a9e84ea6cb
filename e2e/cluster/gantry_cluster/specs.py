"""Manifests that tests of groups begin with."""

from __future__ import annotations

from typing import Final

from gantry_cluster.api import Object

TOPIC: Final = "orders"
"""The topic of the specs below."""

SMALL: Final[Object] = {
    "slaves": 1,
    "storage": {"size": "1Gi"},
    "writeBuffer": {"segmentSize": "8Mi"},
    "resources": {"limits": {"memory": "512Mi"}},
    "topics": [{"name": TOPIC, "queues": 4}],
}
"""The smallest group, with files that a test can fill: one shard, one in-sync slave."""

ASYNC: Final[Object] = SMALL | {
    "replication": {"mode": "Async"},
    "failover": {"mode": "Automatic", "maxDataLossBytes": "64Mi"},
}
"""Asynchronous replication, with automatic failover if that loses no more than the limit."""

BUFFERED: Final[Object] = ASYNC | {"writeBuffer": {"medium": "HugePages-2Mi", "buffers": 3, "segmentSize": "8Mi"}}
"""Asynchronous, with buffers in huge pages that survive the process."""

UNCOMMITTED: Final[Object] = BUFFERED | {
    "broker": {
        "commitIntervalCommitLog": "3600000",
        "commitCommitLogThoroughInterval": "3600000",
        "commitCommitLogLeastPages": "1000000",
    }
}
"""The same, but no buffer is committed by a timer: data that survives a crash has been replayed from the buffers."""

TWO_SLAVES: Final[Object] = SMALL | {"slaves": 2}
"""One of two slaves must acknowledge, so one broker may be down."""

WITH_HUGE_PAGES: Final[Object] = SMALL | {
    "shards": 2,
    "writeBuffer": {"medium": "HugePages-2Mi", "buffers": 3, "segmentSize": "8Mi"},
    "access": {"external": {"type": "NodePort"}},
}
"""Two shards with their buffers in huge pages, and external access."""
