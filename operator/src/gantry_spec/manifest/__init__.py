"""The manifest of a broker group: its fields, their validation rules, and the edits that are allowed later.

``parts`` and ``group`` define the fields, ``reading`` parses a file into them, ``rules`` checks combinations of fields,
``changes`` checks edits, and ``crd`` generates the CustomResourceDefinition from all of these.
"""

from gantry_spec.manifest.changes import check_changes
from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.reading import read_group, read_groups

__all__ = ["BrokerGroup", "ManifestError", "Problem", "Spec", "check_changes", "read_group", "read_groups"]
