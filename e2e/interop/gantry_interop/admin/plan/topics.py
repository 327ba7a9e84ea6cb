"""Commands for topics and their routes."""

from __future__ import annotations

import json
from typing import Any, Final

from gantry_interop.admin.plan.reasons import NO_LITE_TOPICS
from gantry_interop.admin.plan.values import INTERNAL_TOPIC_NAMES
from gantry_interop.admin.steps import Step


def _topic(name: str, **other: Any) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 3, "writeQueueNums": 3, "perm": 6, **other}


FILES: Final = {
    "topics.json": json.dumps([_topic("listed_one"), _topic("listed_two", perm=4)]),
    "topics-again.json": json.dumps([_topic("listed_one", readQueueNums=5, writeQueueNums=5, order=True)]),
    "topics-bad.json": json.dumps([_topic("listed_three"), _topic("no good!")]),
    "topics-empty.json": "[]",
}

_UPDATES: Final = (
    Step("updateTopic", "-b {broker} -t orders -r 4 -w 4 -p 6"),
    Step("updateTopic", "-c {cluster} -t backlog -r 2 -w 2"),
    Step("updateTopic", "-c {cluster} -t traced -r 1 -w 1"),
    Step("updateTopic", "-c {cluster} -t empty"),
    Step("updateTopic", "-c {cluster} -t ledger -r 3 -w 3 -o true"),
    Step("topicRoute", "-t ledger", shows="updateTopic"),
    Step("updateOrderConf", "-t ledger -m get", shows="updateTopic"),
    Step("updateTopic", "-b {broker} -t units -u true -s true -r 2 -w 2"),
    Step("topicRoute", "-t units", shows="updateTopic"),
    Step("updateTopic", "-b {broker} -t fifo -r 2 -w 2 -a +message.type=FIFO"),
    Step("exportMetadata", "-b {broker} -t -f {files}/fifo", output_file="fifo/metadata.json", shows="updateTopic"),
    Step("updateTopic", "-b {broker} -t fifo -r 2 -w 2 -a +message.type=NORMAL"),
    Step("updateTopic", "-b {broker} -t fifo -r 2 -w 2 -a -message.type"),
    Step("updateTopic", "-b {broker} -t odd -a +no.such.attribute=1"),
    Step("updateTopic", "-b {broker} -t odd -a nonsense"),
    Step("updateTopic", "-b {broker} -t odd -a +message.type=STRANGE"),
    Step("updateTopic", "-b {broker} -t lite -r 1 -w 1 -a +message.type=LITE", deviation=NO_LITE_TOPICS),
    Step("deleteTopic", "-c {cluster} -t lite"),
    Step("updateTopic", "-b {broker} -t changing -r 2 -w 6 -p 4"),
    Step("topicRoute", "-t changing", shows="updateTopic"),
    Step("updateTopic", "-b {broker} -t changing -r 6 -w 2 -p 6"),
    Step("topicRoute", "-t changing", shows="updateTopic"),
    Step("updateTopic", "-b {broker} -t 'no good!'"),
    Step("updateTopic", "-b {broker} -t SCHEDULE_TOPIC_XXXX"),
    Step("updateTopic", "-b {broker} -t TBW102"),
    Step("updateTopic", "-b {broker} -t changing -r none"),
    Step("updateTopic", "-c nowhere -t changing"),
    Step("updateTopic", "-t changing"),
    Step("updateTopic", "-b {broker} -c {cluster} -t changing"),
    Step("updateTopic", "-h"),
)

_LISTS: Final = (
    Step("updateTopicList", "-b {broker} -f {files}/topics.json"),
    Step("topicRoute", "-t listed_two", shows="updateTopicList"),
    Step("updateTopicList", "-c {cluster} -f {files}/topics-again.json"),
    Step("topicRoute", "-t listed_one", shows="updateTopicList"),
    Step("updateTopicList", "-c {cluster} -f {files}/topics-bad.json"),
    Step("topicRoute", "-t listed_three", shows="updateTopicList"),
    Step("updateTopicList", "-c {cluster} -f {files}/topics-empty.json"),
    Step("updateTopicList", "-b {broker} -f {files}/nothing.json"),
)

BEFORE_CLIENTS: Final = (*_UPDATES, *_LISTS)

WITH_CLIENTS: Final = (
    Step("topicList", is_unordered=True, settles_seconds=10, quirks=(INTERNAL_TOPIC_NAMES,)),
    Step("topicList", "-c", is_unordered=True, settles_seconds=10, quirks=(INTERNAL_TOPIC_NAMES,)),
    Step("topicRoute", "-t orders"),
    Step("topicRoute", "-t orders -l"),
    Step("topicRoute", "-t nobody_made"),
    Step("topicRoute", "-t %RETRY%watchers"),
    Step("topicStatus", "-t orders"),
    Step("topicStatus", "-t backlog -c {cluster}"),
    Step("topicStatus", "-t empty"),
    Step("topicStatus", "-t nobody_made"),
    Step("topicClusterList", "-t orders"),
    Step("topicClusterList", "-t nobody_made"),
    Step("updateTopicPerm", "-b {broker} -t changing -p 2"),
    Step("topicRoute", "-t changing", shows="updateTopicPerm"),
    Step("updateTopicPerm", "-c {cluster} -t changing -p 6"),
    Step("topicRoute", "-t changing", shows="updateTopicPerm"),
    Step("updateTopicPerm", "-c {cluster} -t changing -p 6"),
    Step("updateTopicPerm", "-b {broker} -t nobody_made -p 4"),
    Step("updateTopicPerm", "-b 127.0.0.1:1 -t changing -p 4"),
    Step("updateTopicPerm", "-t changing -p 4"),
    Step("updateOrderConf", "-t ledger -m put -v broker-a:3"),
    Step("updateOrderConf", "-t ledger -m get"),
    Step("topicRoute", "-t ledger", shows="updateOrderConf", settles_seconds=10),
    Step("updateOrderConf", "-t ledger -m delete"),
    Step("updateOrderConf", "-t ledger -m get"),
    Step("updateOrderConf", "-t ledger -m put"),
    Step("updateOrderConf", "-t ledger -m other"),
    Step("allocateMQ", "-t orders -i 10.0.0.1,10.0.0.2,10.0.0.3", is_unordered=True),
    Step("allocateMQ", "-t nobody_made -i 10.0.0.1"),
)

FINAL: Final = (
    Step("deleteTopic", "-c {cluster} -t listed_one"),
    Step("topicRoute", "-t listed_one", shows="deleteTopic"),
    Step("topicStatus", "-t listed_one", shows="deleteTopic"),
    Step("topicList", is_unordered=True, shows="deleteTopic", quirks=(INTERNAL_TOPIC_NAMES,)),
    Step("deleteTopic", "-c {cluster} -t nobody_made"),
    Step("deleteTopic", "-c {cluster} -t SCHEDULE_TOPIC_XXXX"),
    Step("deleteTopic", "-c nowhere -t listed_two"),
    Step("deleteTopic", "-t listed_two"),
    Step("updateStaticTopic", "-t static -qn 4 -b broker-a"),
    Step("topicRoute", "-t static", shows="updateStaticTopic"),
    Step("topicStatus", "-t static", shows="updateStaticTopic"),
    Step("updateStaticTopic", "-t static -qn 6 -c {cluster}"),
    Step("topicRoute", "-t static", shows="updateStaticTopic"),
    Step("updateStaticTopic", "-t static -qn 2 -b broker-a"),
    Step("remappingStaticTopic", "-t static -b broker-a"),
    Step("topicStatus", "-t static", shows="remappingStaticTopic"),
    Step("remappingStaticTopic", "-t orders -b broker-a"),
)
