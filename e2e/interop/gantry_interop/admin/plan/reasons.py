"""The reasons for the commands whose output differs."""

from __future__ import annotations

from typing import Final

NO_LITE_TOPICS: Final = "lite topics are not supported"

_STATIC: Final = "static topics are not supported: each broker has its own queues of a topic"
GROUP_RETURNS: Final = (
    "Apache's broker creates the group again after it has deleted it, unless its offsets are deleted, too (`-r true`)"
)

REASONS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "getBrokerLiteInfo", "getParentTopicInfo", "getLiteTopicInfo", "getLiteClientInfo", "getLiteGroupInfo",
            "triggerLiteDispatch",
        ),
        NO_LITE_TOPICS,
    ),
    "getBrokerConfig": (
        "timers may wait for 40 days (`timerMaxDelaySec`, with RocketMQ 3), and are due to the millisecond "
        "(`timerPrecisionMs`, with RocketMQ to the second)"
    ),
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "getBrokerEpoch": "needs brokers under a controller",
}  # fmt: skip
