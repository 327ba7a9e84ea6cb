"""The annotations for Artifact Hub follow its documented rules, and come from the sources of the charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import artifact_hub
import pytest
import yaml
from artifact_hub import BUNDLE_RULES, CHART_RULES, repository_violations, violations
from charts_scene import GROUP, OPERATOR, ROOT
from olm_bundle import Release, bundle_files

from gantry_spec.manifest.crd import crd
from gantry_spec.pipelines.crds import pipeline_crds


def about(chart: Path) -> dict[str, Any]:
    """Return the document in Chart.yaml."""
    found: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text())
    return found


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_charts_follow_the_rules(chart: Path) -> None:
    """Artifact Hub refuses a chart with one wrong annotation."""
    annotations = about(chart)["annotations"]

    assert all(name.startswith(artifact_hub.PREFIX) for name in annotations)
    assert violations(annotations, CHART_RULES) == []


def test_bundle_follows_the_rules() -> None:
    """A ClusterServiceVersion has other annotations than a chart; those of OLM itself have other prefixes."""
    files = bundle_files(ROOT, Release(version="0.1.0", images={}))
    [text] = [text for path, text in files.items() if path.endswith(".clusterserviceversion.yaml")]
    annotations = yaml.safe_load(text)["metadata"]["annotations"]

    assert {"artifacthub.io/category", "artifacthub.io/license", "artifacthub.io/prerelease"} <= set(annotations)
    assert violations(annotations, BUNDLE_RULES) == []
    assert violations(about(OPERATOR)["annotations"], BUNDLE_RULES) != []


def test_operator_chart_shows_every_kind_and_image() -> None:
    """Each CRD has a card and an example, and a scan covers the images that only the operator's settings name."""
    annotations = {
        name.removeprefix(artifact_hub.PREFIX): yaml.safe_load(text)
        for name, text in about(OPERATOR)["annotations"].items()
    }
    values = yaml.safe_load((OPERATOR / "values.yaml").read_text())
    kinds = {one["spec"]["names"]["kind"] for one in (crd(), *pipeline_crds())}

    assert {one["kind"] for one in annotations["crds"]} == kinds
    assert {one["kind"] for one in annotations["crdsExamples"]} == kinds
    assert {one["image"].rpartition(":")[0] for one in annotations["images"]} == {
        values[name]["repository"] for name in ("image", "brokerImage", "pipelineImage")
    }


def test_part_of_a_chart_that_is_written_by_hand_stays(tmp_path: Path) -> None:
    """Generating the annotations again changes nothing, and a new version reaches the images."""
    (tmp_path / "charts").mkdir()
    for name in ("manifests", "operator"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "charts/gantry-operator").mkdir()
    for name in ("values.yaml", "Chart.yaml"):
        (tmp_path / "charts/gantry-operator" / name).write_text((OPERATOR / name).read_text())
    chart = tmp_path / "charts/gantry-operator"
    text = artifact_hub.chart_text(tmp_path, chart)
    assert text == (OPERATOR / "Chart.yaml").read_text()

    (chart / "Chart.yaml").write_text(text.replace("appVersion: 0.1.0", "appVersion: 1.2.0"))
    newer = yaml.safe_load(artifact_hub.chart_text(tmp_path, chart))

    assert (newer["appVersion"], newer["version"]) == ("1.2.0", "0.1.0")
    assert "gantry-pipelines:1.2.0" in newer["annotations"]["artifacthub.io/images"]
    assert newer["annotations"]["artifacthub.io/prerelease"] == "false"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("crd", "[]", "unknown annotation"),
        ("category", "messaging", "messaging is none of"),
        ("operatorCapabilities", "Level 5", "Level 5 is none of"),
        ("operator", "yes", "yes is neither true nor false"),
        ("license", " ", "empty"),
        ("prerelease", True, "True is no text"),
        ("crds", "kind: A", "not a list"),
        ("crds", "- kind: A", "an entry has no version"),
        ("crds", "[", "not YAML"),
        ("crdsExamples", "- kind: A", "an entry is no object"),
        ("images", "- image: a:1", "an entry has no name"),
        ("images", "- {name: a, image: 'A B'}", "A B is no image"),
        ("images", "- {name: a, image: 'a:1', sizes: 1}", "unknown field sizes"),
        ("links", "- {name: source, url: example.org}", "example.org is no address"),
        ("recommendations", "- {name: a}", "an entry has no url"),
        ("screenshots", "- {url: 'https://example.org/a.png'}", "an entry has no title"),
        ("changes", "- {kind: new, description: a}", "new is no kind"),
        ("maintainers", "- {name: Ada}", "an entry has no email"),
        ("signKey", "fingerprint: 1A", "no url of the public key"),
    ],
)
def test_wrong_annotations_are_found(name: str, value: Any, reason: str) -> None:
    """Each rule refuses a value that Artifact Hub refuses, or shows nothing for."""
    [found] = violations({f"{artifact_hub.PREFIX}{name}": value}, CHART_RULES)

    assert found.startswith(f"artifacthub.io/{name}: {reason}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("changes", "- Added a\n- Fixed b"),
        ("changes", "- {kind: added, description: a, links: [{name: b, url: 'https://example.org'}]}"),
        ("images", "- {name: a, image: 'registry.example:5000/a/b:1.0@sha256:" + "a" * 64 + "', whitelisted: true}"),
        ("signKey", "{fingerprint: 1A, url: 'https://example.org/key.asc'}"),
        ("category", "skip-prediction"),
        ("operatorCapabilities", "Auto Pilot"),
    ],
)
def test_other_documented_values_are_accepted(name: str, value: str) -> None:
    """A publisher may add them."""
    assert violations({f"{artifact_hub.PREFIX}{name}": value}, CHART_RULES) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("repositoryID: 7a1f7c35-4a4f-4f77-8f2d-3c1a8c0f5b11\nowners: [{name: Ada, email: ada@example.org}]", []),
        ("repositoryID: gantry", ["repositoryID: gantry is not a UUID"]),
        ("owners: [{name: Ada}]", ["owners: an entry has no email"]),
        ("ignore: [{version: beta}]", ["ignore: an entry has no name"]),
        ("owner: Ada", ["owner: unknown field"]),
        ("Ada", ["not a mapping"]),
    ],
)
def test_repository_files_are_checked(text: str, expected: list[str]) -> None:
    """Artifact Hub ignores what it does not know, so a typing error would not be noticed there."""
    assert repository_violations(text) == expected
