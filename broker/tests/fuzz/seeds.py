"""One valid request for every request code, built from the typed commands of `gantry_wire` where it has them.

A seed is what an ordinary client would send; `mutate` changes it. Codes that neither server handles get a plausible
header all the same: servers answer them with code 3, which no session checks.
"""

from typing import Final

from fuzz import seeds_admin as admin
from fuzz import seeds_clients as clients
from fuzz import seeds_groups as groups
from fuzz.pools import DELETABLE_TOPICS
from fuzz.seed import Maker

from gantry_wire import RequestCode

SEED_MAKERS: Final[dict[RequestCode, Maker]] = {
    **{code: admin.plausible(code) for code in RequestCode},
    RequestCode.SEND_MESSAGE: clients.send_message,
    RequestCode.SEND_MESSAGE_V2: clients.send_v2,
    RequestCode.SEND_BATCH_MESSAGE: clients.send_batch,
    RequestCode.SEND_REPLY_MESSAGE: clients.reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: clients.reply_v2,
    RequestCode.CONSUMER_SEND_MSG_BACK: clients.send_back,
    RequestCode.END_TRANSACTION: clients.end_transaction,
    RequestCode.PULL_MESSAGE: clients.pull_message,
    RequestCode.LITE_PULL_MESSAGE: clients.lite_pull,
    RequestCode.PEEK_MESSAGE: clients.peek,
    RequestCode.POP_MESSAGE: clients.pop,
    RequestCode.BATCH_ACK_MESSAGE: clients.batch_ack,
    RequestCode.NOTIFICATION: clients.notification,
    RequestCode.ACK_MESSAGE: clients.pop_receipt(RequestCode.ACK_MESSAGE),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: clients.pop_receipt(RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    RequestCode.RECALL_MESSAGE: clients.recall,
    RequestCode.QUERY_MESSAGE: clients.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: clients.view_message,
    RequestCode.GET_MAX_OFFSET: clients.queue_address(RequestCode.GET_MAX_OFFSET),
    RequestCode.GET_MIN_OFFSET: clients.queue_address(RequestCode.GET_MIN_OFFSET),
    RequestCode.GET_EARLIEST_MSG_STORETIME: clients.queue_address(RequestCode.GET_EARLIEST_MSG_STORETIME),
    RequestCode.QUERY_CONSUMER_OFFSET: clients.query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: clients.update_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: clients.search_offset,
    RequestCode.HEART_BEAT: clients.heartbeat,
    RequestCode.UNREGISTER_CLIENT: clients.unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_group(RequestCode.GET_CONSUMER_LIST_BY_GROUP),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.consumer_group(RequestCode.GET_CONSUMER_CONNECTION_LIST),
    RequestCode.GET_CONSUME_STATS: clients.consumer_group(RequestCode.GET_CONSUME_STATS),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.producer_group,
    RequestCode.GET_BROKER_CONSUME_STATS: groups.broker_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: groups.topic_of_group(RequestCode.QUERY_CONSUME_TIME_SPAN),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.topic_of_group(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER),
    RequestCode.QUERY_CONSUME_QUEUE: groups.consume_queue,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: groups.reset,
    RequestCode.CLONE_GROUP_OFFSET: groups.clone,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: groups.member_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: groups.running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: groups.consume_directly,
    RequestCode.LOCK_BATCH_MQ: clients.lock_batch(RequestCode.LOCK_BATCH_MQ),
    RequestCode.UNLOCK_BATCH_MQ: clients.lock_batch(RequestCode.UNLOCK_BATCH_MQ),
    RequestCode.CHECK_CLIENT_CONFIG: clients.check_client,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin.create_topics,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.create_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin.create_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.group_field(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: admin.group_field(RequestCode.QUERY_TOPICS_BY_CONSUMER),
    RequestCode.GET_TOPIC_CONFIG: admin.topic_name(RequestCode.GET_TOPIC_CONFIG),
    RequestCode.GET_TOPIC_STATS_INFO: admin.topic_name(RequestCode.GET_TOPIC_STATS_INFO),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.topic_name(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO),
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.topic_name(RequestCode.DELETE_TOPIC_IN_BROKER, DELETABLE_TOPICS),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: admin.topic_name(RequestCode.DELETE_TOPIC_IN_NAMESRV),
    RequestCode.UPDATE_BROKER_CONFIG: admin.config_text(RequestCode.UPDATE_BROKER_CONFIG),
    RequestCode.UPDATE_NAMESRV_CONFIG: admin.config_text(RequestCode.UPDATE_NAMESRV_CONFIG),
    RequestCode.REGISTER_BROKER: admin.register_broker,
    RequestCode.UNREGISTER_BROKER: admin.broker_identity(RequestCode.UNREGISTER_BROKER),
    RequestCode.QUERY_DATA_VERSION: admin.broker_identity(RequestCode.QUERY_DATA_VERSION),
    RequestCode.BROKER_HEARTBEAT: admin.broker_identity(RequestCode.BROKER_HEARTBEAT),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: admin.query_route,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: admin.register_topic,
    RequestCode.PUT_KV_CONFIG: admin.key_value(RequestCode.PUT_KV_CONFIG),
    RequestCode.GET_KV_CONFIG: admin.key_value(RequestCode.GET_KV_CONFIG),
    RequestCode.DELETE_KV_CONFIG: admin.key_value(RequestCode.DELETE_KV_CONFIG),
    RequestCode.GET_KVLIST_BY_NAMESPACE: admin.key_value(RequestCode.GET_KVLIST_BY_NAMESPACE),
}
