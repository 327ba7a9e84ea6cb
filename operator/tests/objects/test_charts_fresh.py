"""The generated files match their sources: the CRDs, schemas, READMEs, the dashboard, manifests and samples."""

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
    """Return the names of metrics in an expression, without the labels that the Prometheus operator adds."""
    return {name for name in METRIC.findall(text) if not name.startswith("gantry_dev_")}


def known_metrics() -> set[str]:
    """Return the metrics in the pages about sidecars and proxies."""
    return {
        name for page in ("sidecar", "kubernetes-proxy") for name in metrics_in((ROOT / f"docs/{page}.md").read_text())
    }


def test_generated_files_are_up_to_date() -> None:
    """Run `make manifests` after a change of fields, values, the dashboard or a chart."""
    pages: dict[Path, str] = manifests.plain_pages(ROOT)
    stale = [
        str(path.relative_to(ROOT)) for path, text in pages.items() if not path.exists() or path.read_text() != text
    ]

    assert stale == []


@pytest.mark.needs_helm
def test_manifests_equal_the_rendered_chart() -> None:
    """kubectl and helm install the same objects."""
    pages: dict[Path, str] = manifests.helm_pages(ROOT, helm())
    stale = [
        str(path.relative_to(ROOT)) for path, text in pages.items() if not path.exists() or path.read_text() != text
    ]

    assert stale == []


def test_shipped_crd_is_the_generated_one() -> None:
    """It is one document, for `kubectl apply` and for an API server that tests its rules."""
    assert yaml.safe_load((ROOT / "manifests/crd.yaml").read_text()) == crd()


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_every_chart_value_is_documented(chart: Path) -> None:
    """Each leaf of values.yaml, or its mapping, has a line that explains it."""
    described = {path for path, _, _ in manifests.described_values(chart)}

    def leaves(value: object, path: str) -> set[str]:
        if path in described or not isinstance(value, dict) or not value:
            return {path}
        return {leaf for name, inner in value.items() for leaf in leaves(inner, f"{path}.{name}".lstrip("."))}

    assert leaves(yaml.safe_load((chart / "values.yaml").read_text()), "") == described


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_samples_are_valid_groups(path: Path) -> None:
    """They are read as the operator reads them, with every rule."""
    assert read_group(path.read_text()).metadata.name


def test_samples_of_the_documents_exist() -> None:
    """They range from the minimal one to production."""
    assert {"minimal", "production", "async-buffered", "external", "proxy"} <= {path.stem for path in SAMPLES}


def test_dashboard_uses_existing_metrics() -> None:
    """Each one is in the page about sidecars or proxies."""
    shown = metrics_in("\n".join(dashboard.expressions()))

    assert shown and shown <= known_metrics()
