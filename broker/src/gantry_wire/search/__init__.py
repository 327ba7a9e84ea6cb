"""The search of messages: conditions on a stored message, and bytes by which most other messages can be skipped.

The sidecar's search and live tail and the commands `gantry search` and `gantry consume` all use `MessageMatcher`, so
that the same conditions find the same messages everywhere. The package reads no file and has no clock.
"""

from gantry_wire.search.errors import SearchFault
from gantry_wire.search.json_path import JsonCondition, parse_json_condition, parse_steps, value_at
from gantry_wire.search.matcher import MessageMatcher, SearchCriteria
from gantry_wire.search.needles import Needle

__all__ = [
    "JsonCondition",
    "MessageMatcher",
    "Needle",
    "SearchCriteria",
    "SearchFault",
    "parse_json_condition",
    "parse_steps",
    "value_at",
]
