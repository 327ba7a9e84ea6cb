"""The configuration that jobs read and the resources that Kubernetes takes are one thing, written down twice.

Neither package may import the other; so this is what keeps them together.
"""

from enum import StrEnum
from typing import Any

import msgspec
import pytest

from gantry_pipelines import config
from gantry_spec.manifest.reading import plain
from gantry_spec.manifest.shapes import fields_of, is_part, item_of
from gantry_spec.pipelines import PIPELINE_KINDS, PipelineKind

IDS = [kind.name for kind in PIPELINE_KINDS]


def shape_of(kind: Any, bounds: msgspec.Meta | None) -> Any:
    """What may stand in a field, without the names of types."""
    if is_part(kind):
        return {one.name: (shape_of(one.kind, one.bounds), one.is_optional, default_of(one)) for one in fields_of(kind)}
    limits = None if bounds is None else (bounds.ge, bounds.le, bounds.pattern, bounds.min_length, bounds.max_length)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return sorted(str(member) for member in kind), limits
    if getattr(kind, "__origin__", None) is list:
        return "list", shape_of(*item_of(kind)), limits
    return str(getattr(kind, "__name__", kind)), limits


def default_of(field: Any) -> Any:
    """What stands there when nothing is said; of amounts the number."""
    value = field.default
    if isinstance(value, msgspec.Struct):
        return None
    return [str(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", PIPELINE_KINDS, ids=IDS)
def test_fields_bounds_and_defaults_are_the_same(kind: PipelineKind) -> None:
    """What a resource may say a configuration may say, and no more but `here`."""
    mine = shape_of(config.KINDS[kind.name], None)
    assert mine.pop("here")
    assert mine == shape_of(kind.spec, None)


@pytest.mark.parametrize("kind", PIPELINE_KINDS, ids=IDS)
def test_what_the_operator_writes_is_read(kind: PipelineKind) -> None:
    """A spec as the operator hands it to its pods is read as what it was."""
    from gantry_pipelines.config_reading import config_of

    made = config_of(plain(kind.spec()), config.KINDS[kind.name])
    assert made == config.KINDS[kind.name]()
