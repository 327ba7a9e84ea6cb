"""The examples for Argo CD and Flux refer to what exists, and make groups wait for the operator."""

from __future__ import annotations

from typing import Any

import yaml
from charts_scene import ROOT


def resources(path: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the resources of an example by kind and name."""
    documents = yaml.safe_load_all((ROOT / "manifests" / path).read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def test_argo_cd_applies_the_operator_before_the_groups() -> None:
    """Its chart is where the example says, and no example prunes groups."""
    found = resources("argocd/applications.yaml")
    operator, groups = found["Application", "gantry-operator"], found["Application", "gantry-groups"]
    waves = [int(one["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]) for one in (operator, groups)]

    assert waves == sorted(set(waves))
    assert (ROOT / operator["spec"]["source"]["path"] / "Chart.yaml").exists()
    assert operator["spec"]["source"]["helm"] == {"skipTests": True}
    assert groups["spec"]["syncPolicy"]["automated"]["prune"] is False


def test_flux_applies_the_operator_before_the_groups() -> None:
    """The groups depend on a Kustomization that waits for the operator, and are not pruned."""
    found = resources("flux/kustomizations.yaml")
    groups = found["Kustomization", "gantry-groups"]["spec"]
    release = found["HelmRelease", "gantry-operator"]["spec"]

    [needed] = groups["dependsOn"]
    assert found["Kustomization", needed["name"]]["spec"]["wait"] is True
    assert (groups["prune"], groups["wait"]) == (False, True)
    assert (ROOT / release["chart"]["spec"]["chart"] / "Chart.yaml").exists()


def test_health_checks_patch_the_settings_of_argo_cd() -> None:
    """The patch is of the ConfigMap that Argo CD reads, and removes nothing from it."""
    found = resources("argocd/health.yaml")["ConfigMap", "argocd-cm"]

    assert found["metadata"]["labels"]["app.kubernetes.io/part-of"] == "argocd"
    assert all(key.startswith("resource.customizations.health.gantry.dev_") for key in found["data"])
