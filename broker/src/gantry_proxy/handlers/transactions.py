"""The call that ends a transaction: any replica can make it, since the transaction id has all that a broker needs."""

from typing import Final

from gantry_access.permissions import publish_need
from gantry_proxy.brokers import require_ok
from gantry_proxy.context import CallContext
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError
from gantry_proxy.translation.checks import topic_name
from gantry_proxy.translation.handles import read_transaction_id
from gantry_wire.codes import RequestCode
from gantry_wire.commands.transactions import EndTransaction

_DECISIONS: Final = {pb.COMMIT: 8, pb.ROLLBACK: 12}
"""Resolutions, and the numbers of brokers for them."""


async def end_transaction(
    core: ProxyCore, context: CallContext, request: pb.EndTransactionRequest
) -> pb.EndTransactionResponse:
    """Commit or roll back a transaction.

    The producer group of half messages that came through a proxy is their topic. Brokers compare it with the group of
    the half message, and Gantry's also with its topic, so that a client cannot end the transactions of a producer over
    remoting whose group has the name of the client's topic.
    """
    topic = topic_name(request.topic)
    if not request.transaction_id.strip():
        raise ProxyError(pb.INVALID_TRANSACTION_ID, "the transaction id is empty")
    core.guard.require(context, publish_need(topic))
    transaction = read_transaction_id(request.transaction_id)
    decision = _DECISIONS.get(request.resolution)
    if decision is None:
        return pb.EndTransactionResponse(status=OK)  # no decision yet: the broker asks later
    address = await core.topics.master(topic, transaction.broker_name)
    header = EndTransaction(
        producer_group=topic,
        tran_state_table_offset=transaction.half_offset,
        commit_log_offset=transaction.physical_offset,
        commit_or_rollback=decision,
        topic=topic,
        from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
        msg_id=transaction.unique_id,
        transaction_id=transaction.unique_id,
        bname=transaction.broker_name,
    )
    require_ok(await core.brokers.request(address, RequestCode.END_TRANSACTION, header), address)
    return pb.EndTransactionResponse(status=OK)
