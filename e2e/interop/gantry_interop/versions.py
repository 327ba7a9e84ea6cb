"""The versions of RocketMQ that the harness uses, as the properties of `e2e/interop/pom.xml`.

The build file is the only place that has them. To move to another release, change its property `rocketmq.version`,
then follow "Another version of RocketMQ" in the README of this directory.
"""

from __future__ import annotations

import re
from typing import Final

from gantry_interop.paths import INTEROP


def _read_property(name: str) -> str:
    text = (INTEROP / "pom.xml").read_text()
    found = re.search(rf"<{re.escape(name)}>([0-9.]+)</{re.escape(name)}>", text)
    if found is None:
        raise LookupError(f"e2e/interop/pom.xml has no property {name}")
    return found[1]


PEER: Final = _read_property("rocketmq.version")
"""The version of the servers, the tools and the newest client."""
PREVIOUS: Final = _read_property("rocketmq.previous.version")
"""The 5.x client before it, which must still work."""
OLDEST: Final = _read_property("rocketmq.oldest.version")
"""The client of RocketMQ 4, which must still work."""
