"""Offsets of consumer groups: showing and resetting them."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.plan.values import (
    CONSUME_RATE,
    INTERNAL_TOPIC_STATISTICS,
    STATISTICS,
)
from gantry_interop.admin.steps import Step

WITH_CLIENTS: Final = (
    Step("cloneGroupOffset", "-s readers -d cloned -t backlog"),
    Step("consumerProgress", "-g cloned", shows="cloneGroupOffset", masks=CONSUME_RATE),
    Step("cloneGroupOffset", "-s readers -d cloned -t backlog -o true"),
    Step("cloneGroupOffset", "-s nobody -d cloned -t backlog"),
    Step("brokerConsumeStats", "-b {broker}", is_unordered=True),
    Step("brokerConsumeStats", "-b {broker} -t 20000 -l 2 -o false", is_unordered=True),
    Step("brokerConsumeStats", "-b {broker} -o true"),
    Step(
        "statsAll",
        settles_seconds=40,
        is_unordered=True,
        masks=STATISTICS,
        quirks=(INTERNAL_TOPIC_STATISTICS,),
    ),
    Step(
        "statsAll",
        "-a",
        settles_seconds=80,
        is_unordered=True,
        masks=STATISTICS,
        quirks=(INTERNAL_TOPIC_STATISTICS,),
    ),
    Step("statsAll", "-t orders", masks=STATISTICS, quirks=(INTERNAL_TOPIC_STATISTICS,)),
    Step("resetOffsetByTime", "-g readers -t backlog -s 0", is_unordered=True),
    Step("consumerProgress", "-g readers", shows="resetOffsetByTime", masks=CONSUME_RATE),
    Step("resetOffsetByTime", "-g readers -t backlog -s now -f false", is_unordered=True),
    Step("resetOffsetByTime", "-g readers -t backlog -s -1", is_unordered=True),
    Step("consumerProgress", "-g readers", shows="resetOffsetByTime", masks=CONSUME_RATE),
    Step("resetOffsetByTime", "-g readers -t backlog -s 2020-01-01#00:00:00:000", is_unordered=True),
    Step("resetOffsetByTime", "-g readers -t backlog -s 0 -b {broker} -q 1 -o 3"),
    Step("consumerProgress", "-g readers", shows="resetOffsetByTime", masks=CONSUME_RATE),
    Step("resetOffsetByTime", "-g readers -t backlog -s now -b {broker} -q 0"),
    Step("resetOffsetByTime", "-g readers -t backlog -s 0 -c {cluster}", is_unordered=True),
    Step("resetOffsetByTime", "-g watchers -t orders -s 0", is_unordered=True),
    Step("consumerProgress", "-g watchers", shows="resetOffsetByTime", settles_seconds=30, masks=CONSUME_RATE),
    Step("resetOffsetByTime", "-g nobody -t backlog -s 0"),
    Step("resetOffsetByTime", "-g readers -t nobody_made -s 0"),
    Step("skipAccumulatedMessage", "-g readers -t backlog", is_unordered=True),
    Step("consumerProgress", "-g readers", shows="skipAccumulatedMessage", masks=CONSUME_RATE),
    Step("skipAccumulatedMessage", "-g watchers -t orders -f true", is_unordered=True),
    Step("skipAccumulatedMessage", "-g readers -t nobody_made"),
)

FINAL: Final = (Step("cloneGroupOffset", "-s watchers -d unknown_group -t orders"),)
