"""The name server: its table of keys, its settings, and what it lets brokers be written to."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.steps import Step

BEFORE: Final = (
    Step("updateKvConfig", "-s SPACE -k key -v value"),
    Step("updateKvConfig", "-s SPACE -k key -v 'another value'"),
    Step("updateKvConfig", "-s SPACE -k key"),
    Step("deleteKvConfig", "-s SPACE -k key"),
    Step("deleteKvConfig", "-s SPACE -k key"),
    Step("deleteKvConfig", "-s NO_SPACE -k key"),
)

AFTER: Final = (
    Step("wipeWritePerm", "-b broker-a"),
    Step("topicRoute", "-t orders", shows="wipeWritePerm"),
    Step("addWritePerm", "-b broker-a"),
    Step("topicRoute", "-t orders", shows="addWritePerm"),
    Step("wipeWritePerm", "-b nobody"),
    Step("addWritePerm", "-b nobody"),
    Step("getNamesrvConfig", is_unordered=True),
    Step("updateNamesrvConfig", "-k clusterTest -v true"),
    Step("getNamesrvConfig", is_unordered=True, shows="updateNamesrvConfig"),
    Step("updateNamesrvConfig", "-k clusterTest -v false"),
    Step("updateNamesrvConfig", "-k kvConfigPath -v /elsewhere"),
)
