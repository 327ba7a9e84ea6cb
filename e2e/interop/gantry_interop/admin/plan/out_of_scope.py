"""Commands that use neither a broker nor a name server of the kind that is compared here."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.steps import Absent

_CONTROLLER: Final = "needs a controller (DLedger), which this broker does not use ([fail over](failover.md))"
_CONTAINER: Final = "needs a broker container, which runs several brokers in one process"
_ROCKSDB: Final = "reads the files of a RocksDB store, or compares one with the ordinary queues"

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
    Absent("checkRocksdbCqWriteProgress", _ROCKSDB),
    Absent("dumpCompactionLog", "reads a file of a compacted topic on its own disk, and sends no request"),
)  # fmt: skip
