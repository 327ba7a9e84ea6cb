"""The reasons for the commands whose output differs."""

from __future__ import annotations

from typing import Final

NO_LITE_TOPICS: Final = "lite topics, which are consumed by pop, are not supported"

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
    "setConsumeMode": "pop consumption is not supported, so every group uses pull mode",
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "getBrokerEpoch": "needs brokers under a controller",
}  # fmt: skip
