"""Which requests to a broker are an administrator's writes, and so leave a line in the audit log.

Everything that only a master may do, and everything else that changes what a broker keeps or how it behaves, but for
what clients do all day: a line for each failed message or each renewed lock would bury the one that matters. Commits
of offsets are such, too, though a tool could send one.
"""

from typing import Final

from gantry_broker.server.core.gate import CHANGES
from gantry_wire import RequestCode

EVERY_DAY: Final = frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ,
    }
)
"""Changes that clients make by themselves."""

OF_ANY_BROKER: Final = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""Writes that are not a matter of the master's role, and what makes a consumer act.

Some are answered 3, and leave their line all the same.
"""

AUDITED: Final = (CHANGES - EVERY_DAY) | OF_ANY_BROKER
