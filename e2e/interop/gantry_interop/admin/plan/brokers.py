"""Brokers and clusters: their state, their settings, and exports."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.masks import CommonRows, Mask
from gantry_interop.admin.plan.values import (
    CLUSTER_LOAD,
    CLUSTER_TOTALS,
    LOG_END_OFFSET,
    METRICS_OF_BROKER,
    OWN_CLIENT_OF_MONITOR,
)
from gantry_interop.admin.steps import Step

SETTINGS: Final = CommonRows(
    r"(\w+) +=", 60, "each broker has settings that the other lacks; the common settings are compared"
)
_NUMBER: Final = r"\d+(?:\.\d+(?:E-?\d+)?)?"
PORTS: Final = (Mask("port", r"^(?:listenPort|haListenPort) += +(?P<value>\d+) *$"),)
BROKER_STATUS: Final = (
    Mask("rates", rf"^(?:<broker> +)?(?:get|put)\w*Tps *: (?P<value>{_NUMBER}(?: {_NUMBER}){{0,2}}) *$"),
    Mask("share", r"^(?:<broker> +)?\w+DiskRatio *: (?P<value>0\.\d+) *$"),
    Mask("duration", r"runtime +: (?P<value>\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \])"),
    Mask("count", rf"^(?:<broker> +)?putMessage(?:AverageSize|SizeTotal) *: (?P<value>{_NUMBER}) *$"),
    Mask("milliseconds", r"^(?:<broker> +)?[gp][eu]tMessageEntireTimeMax *: (?P<value>\d+) *$"),
    Mask("milliseconds", r"^(?:<broker> +)?putLatency999? *: (?P<value>\d+\.\d\d) *$"),
    Mask("size", r"commitLogDirCapacity +: Total : (?P<value>\d+\.\d GiB), Free : "),
    Mask("size", r"commitLogDirCapacity +: Total : <size>, Free : (?P<value>\d+\.\d [GM]iB)\."),
    Mask("count", r"^(?:<broker> +)?timer(?:Read|Offset)Behind *: (?P<value>\d+) *$"),
    *(
        Mask("count", r"putMessageDistributeTime *: (?:\[\S+\]:<count> )*\[\S+\]:(?P<value>\d+)(?= |$)")
        for _ in range(13)
    ),
    Mask("count", r"^(?:<broker> +)?(?:msgGetTotalTodayNow|commitLogMaxOffset) *: (?P<value>\d+) *$"),
    Mask("count", r"^(?:<broker> +)?\w+ThreadPoolQueue(?:Capacity|HeadWaitTimeMills|Size) *: (?P<value>\d+) *$"),
)
BROKER_STATUS_ROWS: Final = CommonRows(
    r"(?:<broker> +)?(\S+?) *:",
    50,
    "each broker has fields that the other lacks; the common fields are compared",
)

WITH_CLIENTS: Final = (
    Step("clusterList", masks=CLUSTER_LOAD),
    Step("clusterList", "-m", masks=CLUSTER_TOTALS),
    Step("clusterList", "-c {cluster}", masks=CLUSTER_LOAD),
    Step("clusterList", "-c nowhere", masks=CLUSTER_LOAD),
    Step("clusterList", "-i 600", masks=CLUSTER_LOAD, is_endless=True, seconds_max=4),
    Step("brokerStatus", "-b {broker}", is_unordered=True, masks=BROKER_STATUS, common=BROKER_STATUS_ROWS),
    Step("brokerStatus", "-c {cluster}", is_unordered=True, masks=BROKER_STATUS, common=BROKER_STATUS_ROWS),
    Step("brokerStatus", "-b 127.0.0.1:1"),
    Step("getBrokerConfig", "-b {broker}", is_unordered=True, common=SETTINGS, masks=PORTS),
    Step("getBrokerConfig", "-c {cluster}", is_unordered=True, common=SETTINGS, masks=PORTS),
    Step("updateBrokerConfig", "-b {broker} -k fileReservedTime -v 50"),
    Step("updateBrokerConfig", "-c {cluster} -k fileReservedTime -v 48"),
    Step("updateBrokerConfig", "-c {cluster} -a true -k fileReservedTime -v 49"),
    Step("updateBrokerConfig", "-b {broker} -k brokerConfigPath -v /elsewhere"),
    Step("updateBrokerConfig", "-b {broker} -k fileReservedTime"),
    Step("haStatus", "-b {broker}", masks=LOG_END_OFFSET),
    Step("haStatus", "-c {cluster}", masks=LOG_END_OFFSET),
    Step("haStatus", "-b {broker} -i 600", masks=LOG_END_OFFSET, is_endless=True, seconds_max=4),
    Step("haStatus"),
    Step("getBrokerEpoch", "-b broker-a"),
    Step("getBrokerEpoch", "-c {cluster}"),
    Step("resetMasterFlushOffset", "-b {broker} -o 0"),
    Step("getColdDataFlowCtrInfo", "-b {broker}"),
    Step("getColdDataFlowCtrInfo", "-c {cluster}"),
    Step("updateColdDataFlowCtrGroupConfig", "-b {broker} -g readers -v 1024"),
    Step("getColdDataFlowCtrInfo", "-b {broker}", shows="updateColdDataFlowCtrGroupConfig"),
    Step("updateColdDataFlowCtrGroupConfig", "-c {cluster} -g readers -v 2048"),
    Step("removeColdDataFlowCtrGroupConfig", "-b {broker} -g readers"),
    Step("getColdDataFlowCtrInfo", "-b {broker}", shows="removeColdDataFlowCtrGroupConfig"),
    Step("removeColdDataFlowCtrGroupConfig", "-c {cluster} -g readers"),
    Step("setCommitLogReadAheadMode", "-b {broker} -m 1"),
    Step("setCommitLogReadAheadMode", "-c {cluster} -m 0"),
    Step("setCommitLogReadAheadMode", "-b {broker} -m 7"),
    Step("exportMetadata", "-c {cluster} -f {files}/all", output_file="all/metadata.json"),
    Step("exportMetadata", "-c {cluster} -t -f {files}/topics", output_file="topics/metadata.json"),
    Step("exportMetadata", "-c {cluster} -g -s -f {files}/groups", output_file="groups/metadata.json"),
    Step("exportMetadata", "-b {broker} -t -s -f {files}/broker", output_file="broker/metadata.json"),
    Step("exportConfigs", "-c {cluster} -f {files}/configs", output_file="configs/configs.json"),
    Step(
        "exportMetrics", "-c {cluster} -f {files}/metrics", output_file="metrics/metrics.json", masks=METRICS_OF_BROKER
    ),
    Step("exportPopRecord", "-b {broker} -d true"),
    Step("exportPopRecord", "-b {broker}"),
    Step("exportPopRecord", "-c {cluster} -d false"),
    Step("cleanExpiredCQ", "-b {broker}"),
    Step("cleanExpiredCQ", "-c {cluster}"),
    Step("cleanExpiredCQ"),
    Step("deleteExpiredCommitLog", "-b {broker}"),
    Step("deleteExpiredCommitLog", "-c {cluster}"),
    Step("deleteExpiredCommitLog"),
    Step("cleanUnusedTopic", "-b {broker}"),
    Step("cleanUnusedTopic", "-c {cluster}"),
    Step("topicStatus", "-t orders", shows="cleanUnusedTopic"),
)

FINAL: Final = (
    Step("startMonitoring", seconds_max=10, logs="[MONITOR]", quirks=(OWN_CLIENT_OF_MONITOR,), is_unordered=True),
)
