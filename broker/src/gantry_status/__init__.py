"""The status page: what a broker says about itself, readable when the broker itself no longer answers.

One small file of a fixed layout, published ten times a second and at each change of phase. ``PageWriter`` is the
broker's half, ``PageReader`` everybody else's; the bytes are in ``layout``, and told in ``broker/docs/status-page.md``.
"""

from gantry_status.errors import (
    PageAbsent,
    PageDamaged,
    PageForeign,
    PageTaken,
    PageTooShort,
    PageTorn,
    PageUnreadable,
    PageVersionUnknown,
    StatusPageError,
)
from gantry_status.facts import LogRange, Medium, Origin, Phase, RefusalReason, Role, SlaveStatus, Status
from gantry_status.moment import Moment, Now, machine_boot_id, now
from gantry_status.page import PageWriter, new_origin
from gantry_status.reader import PUBLISH_INTERVAL_MS, STALE_AFTER_MS, PageReader, Reading

__all__ = [
    "PUBLISH_INTERVAL_MS",
    "STALE_AFTER_MS",
    "LogRange",
    "Medium",
    "Moment",
    "Now",
    "Origin",
    "PageAbsent",
    "PageDamaged",
    "PageForeign",
    "PageReader",
    "PageTaken",
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
