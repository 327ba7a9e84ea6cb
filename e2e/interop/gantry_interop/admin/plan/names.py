"""The name server: its key-value table, its settings, and its write permissions of brokers."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.masks import CommonRows, Mask
from gantry_interop.admin.plan.values import TOPICS_OF_BROKER
from gantry_interop.admin.steps import Step

PORT: Final = (Mask("port", r"^listenPort += +(?P<value>\d+) *$"),)
SETTINGS: Final = CommonRows(
    r"(\w+) +=", 12, "each name server has settings that the other lacks; the common settings are compared"
)

BEFORE_CLIENTS: Final = (
    Step("updateKvConfig", "-s SPACE -k key -v value"),
    Step("updateKvConfig", "-s SPACE -k key -v 'another value'"),
    Step("updateKvConfig", "-s SPACE -k key"),
    Step("deleteKvConfig", "-s SPACE -k key"),
    Step("deleteKvConfig", "-s SPACE -k key"),
    Step("deleteKvConfig", "-s NO_SPACE -k key"),
)

WITH_CLIENTS: Final = (
    Step("wipeWritePerm", "-b broker-a", masks=TOPICS_OF_BROKER),
    Step("topicRoute", "-t orders", shows="wipeWritePerm"),
    Step("addWritePerm", "-b broker-a", masks=TOPICS_OF_BROKER),
    Step("topicRoute", "-t orders", shows="addWritePerm"),
    Step("wipeWritePerm", "-b nobody"),
    Step("addWritePerm", "-b nobody"),
    Step("getNamesrvConfig", is_unordered=True, common=SETTINGS, masks=PORT),
    Step("updateNamesrvConfig", "-k scanNotActiveBrokerInterval -v 6000"),
    Step("getNamesrvConfig", is_unordered=True, common=SETTINGS, masks=PORT, shows="updateNamesrvConfig"),
    Step("updateNamesrvConfig", "-k scanNotActiveBrokerInterval -v 5000"),
    Step("updateNamesrvConfig", "-k kvConfigPath -v /elsewhere"),
)
