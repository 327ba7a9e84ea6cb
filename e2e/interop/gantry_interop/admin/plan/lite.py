"""Lite topics, which Gantry's broker refuses, and the switch of the engine of timers."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.steps import Step

WITH_CLIENTS: Final = (
    Step("getBrokerLiteInfo", "-b {broker}"),
    Step("getBrokerLiteInfo", "-c {cluster} -d"),
    Step("getBrokerLiteInfo"),
    Step("getParentTopicInfo", "-p orders"),
    Step("getParentTopicInfo", "-p nobody_made"),
    Step("getLiteTopicInfo", "-p orders -l one -s"),
    Step("getLiteClientInfo", "-p orders -g watchers -c {watcher} -s"),
    Step("getLiteGroupInfo", "-p orders -g watchers"),
    Step("getLiteGroupInfo", "-p orders -g watchers -l one"),
    Step("triggerLiteDispatch", "-p orders -g watchers"),
    Step("switchTimerEngine", "-b {broker} -e F"),
    Step("switchTimerEngine", "-c {cluster} -e R"),
    Step("switchTimerEngine", "-b {broker} -e sideways"),
    Step("switchTimerEngine", "-e F"),
)
