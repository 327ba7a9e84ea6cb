"""Consumer groups, their clients, and producers."""

from __future__ import annotations

import json
from typing import Final

from gantry_interop.admin.plan.reasons import GROUP_RETURNS, NO_LITE_TOPICS
from gantry_interop.admin.plan.values import (
    CONSUME_RATE,
    OWN_CLIENT_OF_TOOL,
    OWN_CONSUMER_OF_TOOL,
    RUNNING_INFO,
    THREAD_LIST,
)
from gantry_interop.admin.steps import Step

FILES: Final = {
    "groups.json": json.dumps([{"groupName": "listed_readers", "retryMaxTimes": 3}, {"groupName": "listed_others"}]),
    "groups-empty.json": "[]",
}

RETRIES: Final = '{{"type":"EXPONENTIAL","exponentialRetryPolicy":{{"initial":5000,"max":7200000,"multiplier":2}}}}'

BEFORE_CLIENTS: Final = (
    Step("updateSubGroup", "-b {broker} -g watchers"),
    Step("updateSubGroup", "-c {cluster} -g readers -r 5 -q 1"),
    Step("updateSubGroup", "-b {broker} -g careful -s false -m false -d false -o true -q 2 -r 7 -i 1 -w 2 -a false"),
    Step("getConsumerConfig", "-g careful", shows="updateSubGroup"),
    Step(
        "updateSubGroup",
        f"-b {{broker}} -g patient -p '{RETRIES}'",
    ),
    Step("getConsumerConfig", "-g patient", shows="updateSubGroup"),
    Step("updateSubGroup", "-b {broker} -g plain --attributes +no.such.attribute=1"),
    Step("updateSubGroup", "-b {broker} -g plain --attributes +lite.bind.topic=orders", deviation=NO_LITE_TOPICS),
    Step("deleteSubGroup", "-b {broker} -g plain -r true"),
    Step("updateSubGroup", "-c {cluster} -g cloned"),
    Step("updateSubGroup", "-c {cluster} -g popping"),
    Step("updateSubGroup", "-g watchers"),
    Step("updateSubGroup", "-c nowhere -g watchers"),
    Step("updateSubGroupList", "-b {broker} -f {files}/groups.json"),
    Step("getConsumerConfig", "-g listed_readers", shows="updateSubGroupList"),
    Step("updateSubGroupList", "-c {cluster} -f {files}/groups.json"),
    Step("updateSubGroupList", "-c {cluster} -f {files}/groups-empty.json"),
    Step("updateSubGroupList", "-c {cluster} -f {files}/nothing.json"),
)

WITH_CLIENTS: Final = (
    Step("setConsumeMode", "-b {broker} -t orders -g popping -m POP -q 4"),
    Step("setConsumeMode", "-c {cluster} -t orders -g popping -m PULL"),
    Step("setConsumeMode", "-b {broker} -t nobody_made -g popping -m PULL"),
    Step("setConsumeMode", "-b {broker} -t orders -g popping -m SIDEWAYS"),
    Step("setConsumeMode", "-t orders -g popping -m PULL"),
    Step("getConsumerConfig", "-g watchers"),
    Step("getConsumerConfig", "-g nobody"),
    Step("consumerConnection", "-g watchers", is_unordered=True),
    Step("consumerConnection", "-g watchers -b {broker}", is_unordered=True),
    Step("consumerConnection", "-g readers"),
    Step("consumerConnection", "-g nobody"),
    Step("producerConnection", "-g makers -t orders"),
    Step("producerConnection", "-g nobody -t orders"),
    Step("producerConnection", "-g makers -t nobody_made"),
    Step("producer", "-b {broker}", is_unordered=True, quirks=(OWN_CLIENT_OF_TOOL,)),
    Step("consumerProgress", "-g watchers", settles_seconds=10, masks=CONSUME_RATE),
    Step("consumerProgress", "-g readers", masks=CONSUME_RATE),
    Step("consumerProgress", "-g watchers -t orders", masks=CONSUME_RATE),
    Step("consumerProgress", "-g watchers -s true", masks=CONSUME_RATE),
    Step("consumerProgress", "-g watchers -t orders -c {cluster}", masks=CONSUME_RATE),
    Step("consumerProgress", "-g nobody", masks=CONSUME_RATE),
    Step("consumerProgress", is_unordered=True, masks=CONSUME_RATE, quirks=(OWN_CONSUMER_OF_TOOL,)),
    Step("consumerStatus", "-g watchers"),
    Step("consumerStatus", "-g watchers -i {watcher}", masks=RUNNING_INFO),
    Step("consumerStatus", "-g watchers -i {watcher} -s", masks=RUNNING_INFO, quirks=(THREAD_LIST,)),
    Step("consumerStatus", "-g watchers -b {broker}"),
    Step("consumerStatus", "-g readers"),
    Step("consumerStatus", "-g watchers -i nobody"),
)

FINAL: Final = (
    Step("deleteSubGroup", "-b {broker} -g listed_others"),
    Step("getConsumerConfig", "-g listed_others", shows="deleteSubGroup", deviation=GROUP_RETURNS),
    Step("deleteSubGroup", "-c {cluster} -g readers -r true"),
    Step("consumerProgress", "-g readers", shows="deleteSubGroup", masks=CONSUME_RATE),
    Step("getConsumerConfig", "-g readers", shows="deleteSubGroup"),
    Step("deleteSubGroup", "-b {broker} -g nobody"),
    Step("deleteSubGroup", "-g readers"),
    Step("updateSubGroup", "-b {broker} -g 'no good!'"),
)
