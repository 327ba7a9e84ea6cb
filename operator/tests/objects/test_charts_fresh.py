"""What is shipped is what its source says today: the CRD, schemas, READMEs, the dashboard, manifests and samples."""

from __future__ import annotations

import re
from pathlib import Path

import dashboard
import manifests
import pytest
import yaml
from charts_scene import GROUP, OPERATOR, ROOT, helm

from gantry_spec.manifest import read_group
from gantry_spec.manifest.crd import crd

SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))
METRIC = re.compile(r"\b((?:gantry|rocketmq)_[a-z0-9_]+)\b")


def metrics_in(text: str) -> set[str]:
    """Names of metrics; labels that Prometheus' operator adds are none."""
    return {name for name in METRIC.findall(text) if not name.startswith("gantry_dev_")}


def test_nothing_that_is_generated_is_stale() -> None:
    """Run `make manifests` after editing fields, values, the dashboard or a chart."""
    pages: dict[Path, str] = manifests.plain_pages(ROOT)
    stale = [
        str(path.relative_to(ROOT)) for path, text in pages.items() if not path.exists() or path.read_text() != text
    ]

    assert stale == []


@pytest.mark.needs_helm
def test_the_manifests_are_the_chart() -> None:
    """Whoever has kubectl alone gets the same as whoever has helm."""
    pages: dict[Path, str] = manifests.helm_pages(ROOT, helm())
    stale = [
        str(path.relative_to(ROOT)) for path, text in pages.items() if not path.exists() or path.read_text() != text
    ]

    assert stale == []


def test_the_definition_that_is_shipped_is_ours() -> None:
    """One document, for `kubectl apply` and for an API server that tests its rules."""
    assert yaml.safe_load((ROOT / "manifests/crd.yaml").read_text()) == crd()


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_every_value_is_explained(chart: Path) -> None:
    """Each leaf of values.yaml, or the mapping that it is in, has a line that says what it is for."""
    described = {path for path, _, _ in manifests.described_values(chart)}

    def leaves(value: object, path: str) -> set[str]:
        if path in described or not isinstance(value, dict) or not value:
            return {path}
        return {leaf for name, inner in value.items() for leaf in leaves(inner, f"{path}.{name}".lstrip("."))}

    assert leaves(yaml.safe_load((chart / "values.yaml").read_text()), "") == described


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_samples_are_groups_that_can_be_run(path: Path) -> None:
    """Read as the operator reads them, with every rule."""
    assert read_group(path.read_text()).metadata.name


def test_there_are_samples_from_the_least_to_production() -> None:
    """What the documents name is there."""
    assert {"minimal", "production", "async-buffered", "external"} <= {path.stem for path in SAMPLES}


def test_the_dashboard_shows_metrics_that_exist() -> None:
    """Each is one that the page about sidecars knows."""
    known = metrics_in((ROOT / "docs/sidecar.md").read_text())
    shown = metrics_in("\n".join(dashboard.expressions()))

    assert shown and shown <= known
