"""Values that two equivalent servers print differently, and additional output of Apache's servers and of the tool."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.masks import Mask, Quirk

_WHY_INTERNAL: Final = "Apache's broker has internal topics for pop, acting masters, timers and RocksDB"
_INTERNAL_TOPIC: Final = (
    r"(?:rmq_sys_(?:REVIVE_LOG_InteropCluster|SYNC_BROKER_MEMBER_broker-a|wheel_timer)"
    r"|RMQ_SYS_ROCKSDB_TRANS_(?:OP_)?HALF_TOPIC)"
)

INTERNAL_TOPIC_NAMES: Final = Quirk(rf"^(?:InteropCluster +)?{_INTERNAL_TOPIC} *\n", _WHY_INTERNAL)
INTERNAL_TOPIC_STATISTICS: Final = Quirk(rf"^{_INTERNAL_TOPIC} +[^\n]*\n", _WHY_INTERNAL)

ROUND_TRIP_TIME: Final = (Mask("milliseconds", r"^rt=(?P<value>\d+)ms"),)
SEND_TIMES: Final = (
    Mask("milliseconds", r"^broker-a\s+\d+\s+true\s+(?P<value>\d+)$"),
    Mask("milliseconds", r"^Avg RT: (?P<value>\d+\.\d\d)$"),
    Mask("milliseconds", r"^InteropCluster\s+\S+\s+(?P<value>\d+\.\d\d)\s"),
)
TRACE_DURATION: Final = (Mask("milliseconds", r"\s(?P<value>\d+ms)\s"),)
CONSUME_DURATION: Final = (Mask("milliseconds", r"spentTimeMills=(?P<value>\d+)\]"),)
CONSUME_RATE: Final = (Mask("rate", r"^Consume TPS: (?P<value>\d+\.\d\d)$"),)
OWN_CLIENT_OF_MONITOR: Final = Quirk(
    r"^\[MONITOR\] +[^\n]*(?:consumerGroup=|ConsumerGroup: )__MONITOR_CONSUMER,[^\n]*\n",
    "only the first logged round is compared, without the tool's own consumer",
)
_STATS_ROW: Final = r"^\S+(?: +[A-Za-z]\S*)? +\d+"
STATISTICS: Final = (
    Mask("rate", _STATS_ROW + r" +(?P<value>\d+\.\d\d)(?= |$)"),
    Mask("rate", _STATS_ROW + r" +<rate> +(?P<value>\d+\.\d\d)(?= |$)"),
    Mask("count", _STATS_ROW + r"(?: +<rate>)+ +(?P<value>\d+)(?= |$)"),
    Mask("count", _STATS_ROW + r" +<rate> +<rate> +<count> +(?P<value>\d+)(?= |$)"),
)
OWN_CLIENT_OF_TOOL: Final = Quirk(
    r"^producer group \(CLIENT_INNER_PRODUCER\) instance : clientId=\S+@STREAM,[^\n]*\n",
    "the tool's own client, which is listed only if its first heartbeat arrived in time",
)
OWN_CONSUMER_OF_TOOL: Final = Quirk(
    r"^fetchers +[^\n]*\n", "the tool's own consumer, which Apache's broker may list for a while after it has left"
)
INDEX_KEY: Final = (Mask("offset", r"@K@\S+@(?P<value>\d+) *$"),)
CLUSTER_LOAD: Final = (
    Mask("rate", r"<broker> +V\d_\d_\d +(?P<value>\d+\.\d\d)\("),
    Mask("rate", r"ms\) +(?P<value>\d+\.\d\d)\(\d+,\d+ms\|"),
    Mask("count", r"\) +(?P<value>\d+)-\d+\(\d+\.\dw"),
    Mask("hours", r" (?P<value>\d+\.\d\d) +0\.\d+ +true$"),
    Mask("share", r" (?P<value>0\.\d{2,4}) +true$"),
)
CLUSTER_TOTALS: Final = (
    Mask("count", r"^InteropCluster +broker-a +\d+ +\d+ +(?P<value>\d+) +\d+$"),
    Mask("count", r"^InteropCluster +broker-a +\d+ +\d+ +<count> +(?P<value>\d+)$"),
)
METRICS_OF_BROKER: Final = (
    Mask("share", r'DiskRatio": "(?P<value>0\.\d{1,4})"'),
    Mask("bytes", r'"messageAverageSize": "(?P<value>\d+\.\d+)"'),
)
LOG_END_OFFSET: Final = (Mask("offset", r"^#MasterCommitLogMaxOffset\t(?P<value>\d+)$"),)
TOPICS_OF_BROKER: Final = (Mask("count", r"name server\[<names>\] OK, (?P<value>[1-9]\d*)$"),)
RUNNING_INFO: Final = (
    Mask("time", r"^consumeTimestamp +: (?P<value>\d{14})$"),
    Mask("object", r"@(?P<value>[0-9a-f]{6,8})$"),
    Mask("class", r"Residents\$\$Lambda\$(?P<value>\d+/0x[0-9a-f]+)@"),
    *(Mask("rate", r"^\S+" + r" +<rate>" * place + r" +(?P<value>\d+\.\d\d)(?= |$)") for place in range(5)),
)
THREAD_LIST: Final = Quirk(
    r"^[^\n]* TID: \d+ STATE: .*\Z", "the list of threads in the consumer's process, which changes at any time"
)
