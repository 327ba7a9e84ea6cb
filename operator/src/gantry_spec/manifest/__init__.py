"""How a group of brokers is written down: the fields, what they may say together, and what may change later.

``parts`` and ``group`` are the fields, ``reading`` turns a file into them, ``rules`` says what may stand together,
``changes`` what may be edited, and ``crd`` makes of all this what Kubernetes wants to know.
"""

from gantry_spec.manifest.changes import changes
from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.reading import read_group, read_groups

__all__ = ["BrokerGroup", "ManifestError", "Problem", "Spec", "changes", "read_group", "read_groups"]
