"""Commands that use neither a broker nor a name server of the kind that is compared here."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.steps import Absent

_CONTROLLER: Final = "needs a controller (DLedger), which Gantry does not use ([fail over](failover.md))"
_CONTAINER: Final = "needs a broker container, which runs several brokers in one process"
_ROCKSDB: Final = "reads the local files of a RocksDB store"

ABSENT: Final = (
    *(
        Absent(command, _CONTROLLER)
        for command in (
            "getSyncStateSet", "getControllerMetaData", "getControllerConfig", "updateControllerConfig",
            "electMaster", "cleanBrokerMetadata",
        )
    ),
    Absent("addBroker", _CONTAINER),
    Absent("removeBroker", _CONTAINER),
    Absent("exportMetadataInRocksDB", _ROCKSDB),
    Absent("rocksDBConfigToJson", _ROCKSDB),
    Absent("checkRocksdbCqWriteProgress", "asks a broker about its RocksDB consume queues"),
    Absent("dumpCompactionLog", "reads a local file of a compacted topic, and sends no request"),
)  # fmt: skip
