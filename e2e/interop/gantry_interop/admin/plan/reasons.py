"""The reasons for the commands whose output differs."""

from __future__ import annotations

from typing import Final

_ACCOUNTS: Final = (
    "accounts are in a file that an administrator or an operator maintains and every server of a group reads: the "
    "broker refuses to change it, and names it ([security](security.md))"
)
_STATIC: Final = "static topics are not supported: each broker has its own queues of a topic"
_COLD: Final = (
    "reads of old messages are not limited by group; readers that are far behind can be redirected to slaves "
    "(`slaveReadEnable`)"
)

REASONS: Final[dict[str, str]] = {
    "setConsumeMode": "pop consumption is not supported, so there is no mode to set: every group pulls",
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "getBrokerEpoch": "it requests the epochs of brokers under a controller",
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
