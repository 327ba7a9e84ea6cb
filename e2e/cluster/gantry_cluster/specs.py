"""Manifests that tests of groups begin with."""

from __future__ import annotations

from typing import Final

from gantry_cluster.api import Object

TOPIC: Final = "orders"

SMALL: Final[Object] = {
    "slaves": 1,
    "storage": {"size": "1Gi"},
    "writeBuffer": {"segmentSize": "8Mi"},
    "resources": {"limits": {"memory": "512Mi"}},
    "topics": [{"name": TOPIC, "queues": 4}],
}
"""The least that is a group, in files that a test can fill: one shard, one slave that is waited for."""

ASYNC: Final[Object] = SMALL | {
    "replication": {"mode": "Async"},
    "failover": {"mode": "Automatic", "maxDataLossBytes": "64Mi"},
}
"""Nobody is waited for, and the role moves if that loses no more than so much."""

BUFFERED: Final[Object] = ASYNC | {"writeBuffer": {"medium": "HugePages-2Mi", "buffers": 3, "segmentSize": "8Mi"}}
"""The same with buffers that outlive the process."""

UNCOMMITTED: Final[Object] = BUFFERED | {
    "broker": {
        "commitIntervalCommitLog": "3600000",
        "commitCommitLogThoroughInterval": "3600000",
        "commitCommitLogLeastPages": "1000000",
    }
}
"""The same, and nothing leaves a buffer by itself: what survives a crash has been replayed from there."""

TWO_SLAVES: Final[Object] = SMALL | {"slaves": 2}
"""One of two slaves is waited for, so one broker may be away."""

WITH_PAGES: Final[Object] = SMALL | {
    "shards": 2,
    "writeBuffer": {"medium": "HugePages-2Mi", "buffers": 3, "segmentSize": "8Mi"},
    "access": {"external": {"type": "NodePort"}},
}
"""Two shards with their buffers in huge pages, and a way in from outside."""
