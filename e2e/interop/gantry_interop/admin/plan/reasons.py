"""Why a command's output differs, where it does."""

from __future__ import annotations

from typing import Final

_ACCOUNTS: Final = (
    "accounts are a file that a person or an operator keeps and every server of a group reads: the broker refuses to "
    "change it, and names it ([security](security.md))"
)
_STATIC: Final = "there are no static topics: a topic's queues are each broker's own"
_COLD: Final = (
    "who reads old messages is not limited by group; readers that are far behind can be sent to slaves "
    "(`slaveReadEnable`)"
)

REASONS: Final[dict[str, str]] = {
    "setConsumeMode": "pop consumption is not there, so there is no mode to set: every group pulls",
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "getBrokerEpoch": "it is for brokers under a controller, and asks for their epochs",
    **dict.fromkeys(
        ("getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig"), _COLD
    ),
    **dict.fromkeys(
        (
            "createUser", "updateUser", "deleteUser", "copyUser", "createAcl", "updateAcl", "deleteAcl", "copyAcl",
        ),
        _ACCOUNTS,
    ),
}  # fmt: skip
