"""Messages: querying, printing, sending and consuming them."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.plan.values import (
    CONSUME_DURATION,
    ROUND_TRIP_TIME,
    SEND_TIMES,
    TOPIC_AS_GROUP_IN_TRACK,
    TRACE_DURATION,
)
from gantry_interop.admin.steps import Step

TRACK_QUIRKS: Final = (TOPIC_AS_GROUP_IN_TRACK,)

WITH_CLIENTS: Final = (
    Step("queryMsgById", "-t orders -i {orders_place_3}", quirks=TRACK_QUIRKS),
    Step("queryMsgById", "-t orders -i {orders_place_3} -f GBK", quirks=TRACK_QUIRKS),
    Step("queryMsgById", "-t orders -i {orders_place_3} -g watchers -d {watcher}", masks=CONSUME_DURATION),
    Step("queryMsgById", "-t orders -i {orders_place_3} -g readers -d nobody", quirks=TRACK_QUIRKS),
    Step("queryMsgById", "-t orders -i {orders_unique_3}", quirks=TRACK_QUIRKS),
    Step("queryMsgById", "-t traced -i {traced_place_0} -s true -u other", quirks=TRACK_QUIRKS),
    Step("queryMsgById", "-t orders -i nonsense", quirks=TRACK_QUIRKS),
    Step("queryMsgByKey", "-t orders -k order-5"),
    Step("queryMsgByKey", "-t orders -k shared -m 4"),
    Step("queryMsgByKey", "-t orders -k shared -b {start_ms} -e {far_ms} -c {cluster}"),
    Step("queryMsgByKey", "-t orders -k shared -b 0 -e {start_ms}"),
    Step("queryMsgByKey", "-t orders -k missing"),
    Step("queryMsgByKey", "-t nobody_made -k order-5"),
    Step("queryMsgByUniqueKey", "-t orders -i {orders_unique_5}", quirks=TRACK_QUIRKS),
    Step("queryMsgByUniqueKey", "-t orders -i {orders_unique_5} -a", quirks=TRACK_QUIRKS),
    Step("queryMsgByUniqueKey", "-t orders -i {orders_unique_5} -g watchers -d {watcher}", masks=CONSUME_DURATION),
    Step("queryMsgByUniqueKey", "-t orders -i {orders_unique_5} -c {cluster}", quirks=TRACK_QUIRKS),
    Step("queryMsgByUniqueKey", "-t orders -i 7F00000100000000000000000000FFFF", quirks=TRACK_QUIRKS),
    Step("queryMsgByOffset", "-t orders -b broker-a -i 1 -o 2", quirks=TRACK_QUIRKS),
    Step("queryMsgByOffset", "-t orders -b broker-a -i 1 -o 2 -f UTF-8", quirks=TRACK_QUIRKS),
    Step("queryMsgByOffset", "-t orders -b broker-a -i 1 -o 99", quirks=TRACK_QUIRKS),
    Step("queryMsgByOffset", "-t orders -b broker-a -i 9 -o 0", quirks=TRACK_QUIRKS),
    Step("queryMsgByOffset", "-t nobody_made -b broker-a -i 0 -o 0", quirks=TRACK_QUIRKS),
    Step("queryMsgTraceById", "-i {traced_unique_0}", masks=TRACE_DURATION, settles_seconds=20),
    Step(
        "queryMsgTraceById", "-i {traced_unique_0} -t RMQ_SYS_TRACE_TOPIC -b 0 -e {far_ms} -c 5", masks=TRACE_DURATION
    ),
    Step("queryMsgTraceById", "-i {orders_unique_0}"),
    Step("printMsg", "-t orders"),
    Step("printMsg", "-t orders -s 'red || blue' -d false"),
    Step("printMsg", "-t orders -c GBK -b {start_ms} -e {far_ms}"),
    Step("printMsg", "-t orders -b 2030-01-01#00:00:00:000"),
    Step("printMsg", "-t empty"),
    Step("printMsg", "-t nobody_made"),
    Step("printMsgByQueue", "-t orders -a broker-a -i 2 -p true -d true"),
    Step("printMsgByQueue", "-t orders -a broker-a -i 2 -p true -d false -f true -s blue"),
    Step("printMsgByQueue", "-t orders -a broker-a -i 2 -f true -b {start_ms} -e {far_ms}"),
    Step("printMsgByQueue", "-t orders -a broker-a -i 7 -p true"),
    Step("queryCq", "-t orders -q 1 -i 0 -c 5"),
    Step("queryCq", "-t orders -q 1 -i 0 -c 5 -b {broker} -g watchers"),
    Step("queryCq", "-t orders -q 1 -i 9 -c 5"),
    Step("queryCq", "-t orders -q 9 -i 0"),
    Step("queryCq", "-t nobody_made -q 0 -i 0"),
    Step("sendMessage", "-t fifo -p hello -k by-hand -c plum -b broker-a -i 1"),
    Step("queryMsgByKey", "-t fifo -k by-hand", shows="sendMessage", settles_seconds=10),
    Step("sendMessage", "-t fifo -p hello -b broker-a -i 0 -m true"),
    Step("sendMessage", "-t fifo -p hello -i 0"),
    Step("sendMessage", "-t fifo -p hello -b broker-a -i 77"),
    Step("sendMessage", "-t made_by_sending -p hello -b broker-a -i 0"),
    Step("topicStatus", "-t fifo", shows="sendMessage"),
    Step("consumeMessage", "-t backlog -b broker-a -i 1 -c 3 -g fetchers"),
    Step("consumeMessage", "-t backlog -b broker-a -i 1 -o 6 -c 10"),
    Step("consumeMessage", "-t backlog -s {start_ms} -e {far_ms}"),
    Step("consumeMessage", "-t backlog -c 5"),
    Step("consumeMessage", "-t backlog -c 0"),
    Step("consumeMessage", "-t backlog -i 1"),
    Step("consumeMessage", "-t nobody_made"),
    Step("sendMsgStatus", "-b broker-a -c 3", masks=ROUND_TRIP_TIME),
    Step("sendMsgStatus", "-b broker-a -s 1000 -c 2", masks=ROUND_TRIP_TIME),
    Step("checkMsgSendRT", "-t ledger -a 6 -s 64", masks=SEND_TIMES),
    Step("checkMsgSendRT", "-t ledger -a 2", masks=SEND_TIMES),
    Step("clusterRT", "-a 4 -s 32 -c {cluster} -i 600", masks=SEND_TIMES, is_endless=True, seconds_max=6),
    Step("clusterRT", "-a 2 -i 600", masks=SEND_TIMES, is_endless=True, seconds_max=6),
)
