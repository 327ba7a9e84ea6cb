"""The status page: a broker's report about itself, which can be read even when the broker does not answer.

The page is one small file with a fixed layout, published ten times a second and at each change of phase. The broker
writes it with ``PageWriter``, every other program reads it with ``PageReader``. ``layout`` defines the bytes, and
``broker/docs/status-page.md`` describes them.

The package also has what data plane and control plane share and no other common package holds: a broker's state, the
orders to it and their client, former names of fields, its ports, the size of quorums, how sizes are written, and short
names for long paths of sockets.
"""

from gantry_status.clocks import Clock, Moment, machine_boot_id, now
from gantry_status.errors import (
    PageDamaged,
    PageForeign,
    PageInUse,
    PageNotFound,
    PageTooShort,
    PageTorn,
    PageUnreadable,
    PageVersionUnknown,
    StatusPageError,
)
from gantry_status.page import PageWriter, new_origin
from gantry_status.page_values import HotPath, LogRange, Medium, Origin, Phase, RefusalReason, Role, SlaveStatus, Status
from gantry_status.reader import PUBLISH_INTERVAL_MS, STALE_AFTER_MS, PageReader, Reading

__all__ = [
    "PUBLISH_INTERVAL_MS",
    "STALE_AFTER_MS",
    "Clock",
    "HotPath",
    "LogRange",
    "Medium",
    "Moment",
    "Origin",
    "PageDamaged",
    "PageForeign",
    "PageInUse",
    "PageNotFound",
    "PageReader",
    "PageTooShort",
    "PageTorn",
    "PageUnreadable",
    "PageVersionUnknown",
    "PageWriter",
    "Phase",
    "Reading",
    "RefusalReason",
    "Role",
    "SlaveStatus",
    "Status",
    "StatusPageError",
    "machine_boot_id",
    "new_origin",
    "now",
]
