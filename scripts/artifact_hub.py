"""What Artifact Hub reads of the charts, of the OLM bundle and of a repository: annotations, and the rules for them.

`make manifests` writes the annotations of the charts from the CRDs, the samples and the values. `violations` applies
the rules that Artifact Hub documents and applies when it reads a package, because its own checker cannot be built from
a Go module: https://artifacthub.io/docs/topics/annotations/helm and /olm. Links, owners and signing keys have no place
here: they belong to a publisher, and `scripts/charts` and `scripts/olm-bundle` have options for owners and links.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from block_yaml import block_yaml
from olm_forms import display_name

from gantry_spec.manifest.crd import crd
from gantry_spec.pipelines.crds import pipeline_crds

PREFIX: Final = "artifacthub.io/"
CATEGORY: Final = "streaming-messaging"
CAPABILITIES: Final = "Full Lifecycle"
"""Installation, upgrades, failover and backups of groups. See https://operatorframework.io/operator-capabilities/."""

LICENSE: Final = "Apache-2.0"
MONITORING_CHART: Final = "https://artifacthub.io/packages/helm/prometheus-community/kube-prometheus-stack"
"""The chart with the kinds PodMonitor and PrometheusRule, which ours use if the cluster has them."""

EXAMPLES: Final = ("minimal.yaml", "pipelines/archive.yaml", "pipelines/audit.yaml", "pipelines/analytics.yaml")
"""The files below manifests/samples that are shown as examples, one for each kind."""

CATEGORIES: Final = frozenset(
    {
        *("ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security"),
        *("skip-prediction", "storage", "streaming-messaging"),
    }
)
CAPABILITY_LEVELS: Final = frozenset(
    {"basic install", "seamless upgrades", "full lifecycle", "deep insights", "auto pilot"}
)
CHANGE_KINDS: Final = frozenset({"added", "changed", "deprecated", "removed", "fixed", "security"})
IMAGE: Final = re.compile(
    r"([a-z0-9.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
ICON_TYPE: Final = "image/svg+xml"
MARK: Final = "# Written by scripts/manifests.py (`make manifests`) from here on; edit scripts/artifact_hub.py.\n"


def examples(root: Path) -> list[dict[str, Any]]:
    """Return one example of each kind."""
    return [yaml.safe_load((root / "manifests/samples" / name).read_text()) for name in EXAMPLES]


def chart_text(root: Path, chart: Path) -> str:
    """Return the text of Chart.yaml with icon and annotations, which follow the part that is written by hand.

    The icon is in the address itself, because the tree has no address of its own where it could be downloaded.
    """
    own = (chart / "Chart.yaml").read_text().partition(MARK)[0]
    about = yaml.safe_load(own)
    written = {
        "icon": f"data:{ICON_TYPE};base64,{icon(root)}",
        "annotations": chart_annotations(root, about["name"], about["appVersion"]),
    }
    return f"{own}{MARK}{block_yaml(written)}"


def icon(root: Path) -> str:
    """Return the icon of Gantry in base64."""
    return base64.b64encode((root / "operator/olm/icon.svg").read_bytes()).decode()


def chart_annotations(root: Path, name: str, version: str) -> dict[str, str]:
    """Return the annotations of a chart by its name."""
    values = yaml.safe_load((root / "charts/gantry-operator/values.yaml").read_text())
    keys = ("image", "brokerImage", "pipelineImage") if name == "gantry-operator" else ("brokerImage",)
    repositories = [values[key]["repository"] for key in keys]
    found: dict[str, Any] = {
        "category": CATEGORY,
        "images": [{"name": one.rpartition("/")[2], "image": f"{one}:{version}"} for one in repositories],
        "license": LICENSE,
        "prerelease": version.startswith("0.") or "-" in version,
    }
    if name == "gantry-operator":
        found |= {
            "operator": True,
            "operatorCapabilities": CAPABILITIES,
            "crds": [_definition(one) for one in (crd(), *pipeline_crds())],
            "crdsExamples": examples(root),
            "recommendations": [{"url": MONITORING_CHART}],
        }
    return {f"{PREFIX}{key}": _text(value) for key, value in found.items()}


def _definition(document: dict[str, Any]) -> dict[str, str]:
    """Return what Artifact Hub shows of a CRD."""
    [version] = document["spec"]["versions"]
    kind = document["spec"]["names"]["kind"]
    return {
        "kind": kind,
        "version": version["name"],
        "name": document["metadata"]["name"],
        "displayName": display_name(kind),
        "description": version["schema"]["openAPIV3Schema"]["description"],
    }


def _text(value: Any) -> str:
    """Return a value as the text of an annotation: lists as YAML, booleans as `true` or `false`."""
    if isinstance(value, list):
        text: str = yaml.safe_dump(value, sort_keys=False, width=120)
        return text
    return json.dumps(value) if isinstance(value, bool) else str(value)


# -- rules -------------------------------------------------------------------------------------------------------------


def violations(annotations: Mapping[str, Any], rules: Mapping[str, Callable[[str], str]]) -> list[str]:
    """Return the annotations of Artifact Hub that are unknown or invalid, each with the reason. Others are ignored."""
    found = []
    for name, value in annotations.items():
        key = name.removeprefix(PREFIX)
        if key == name:
            continue
        rule = rules.get(key)
        reason = "unknown annotation" if rule is None else _reason(rule, value)
        if reason:
            found.append(f"{name}: {reason}")
    return found


def repository_violations(text: str) -> list[str]:
    """Return what is wrong with a file artifacthub-repo.yml."""
    document = yaml.safe_load(text)
    if not isinstance(document, dict):
        return ["not a mapping"]
    found = [f"{name}: unknown field" for name in sorted(document.keys() - {"repositoryID", "owners", "ignore"})]
    if "repositoryID" in document:
        try:
            uuid.UUID(str(document["repositoryID"]))
        except ValueError:
            found.append(f"repositoryID: {document['repositoryID']} is not a UUID")
    for name, required in (("owners", ("name", "email")), ("ignore", ("name",))):
        allowed = ("name", "email") if name == "owners" else ("name", "version")
        found += [f"{name}: {reason}" for reason in _entry_reasons(document.get(name, []), required, allowed)]
    return found


def _reason(rule: Callable[[str], str], value: Any) -> str:
    """Return why a value is refused; empty if it is accepted."""
    if not isinstance(value, str):
        return f"{value!r} is no text"
    try:
        return rule(value)
    except yaml.YAMLError:
        return "not YAML"


def _entry_reasons(entries: Any, required: tuple[str, ...], allowed: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with a list of mappings."""
    if not isinstance(entries, list):
        yield "not a list"
        return
    for entry in entries:
        if not isinstance(entry, dict):
            yield f"{entry!r} is not a mapping"
            continue
        for name in required:
            if not entry.get(name):
                yield f"an entry has no {name}"
        for name in sorted(entry.keys() - set(allowed)):
            yield f"unknown field {name}"


def _list(required: tuple[str, ...], allowed: tuple[str, ...] = ()) -> Callable[[str], str]:
    """Return the rule for a list of mappings in YAML."""
    return lambda value: next(_entry_reasons(yaml.safe_load(value), required, (*required, *allowed)), "")


def _choice(choices: frozenset[str]) -> Callable[[str], str]:
    """Return the rule for one of several words, in any case."""
    return lambda value: "" if value.lower() in choices else f"{value} is none of {', '.join(sorted(choices))}"


def _is_boolean(value: str) -> str:
    return "" if value in ("true", "false") else f"{value} is neither true nor false"


def _is_text(value: str) -> str:
    return "" if value.strip() else "empty"


def _are_images(value: str) -> str:
    """Check images: each has a name and a reference."""
    reason = _list(("name", "image"), ("whitelisted", "platforms"))(value)
    return reason or next(
        (f"{one['image']} is no image" for one in yaml.safe_load(value) if not IMAGE.fullmatch(one["image"])), ""
    )


def _are_links(value: str, required: tuple[str, ...] = ("name", "url")) -> str:
    """Check links: each has an absolute address."""
    reason = _list(required)(value)
    return reason or next(
        (f"{one['url']} is no address" for one in yaml.safe_load(value) if not one["url"].startswith("https://")), ""
    )


def _are_changes(value: str) -> str:
    """Check changes: texts, or mappings with a kind and a description."""
    entries = yaml.safe_load(value)
    if isinstance(entries, list) and all(isinstance(one, str) for one in entries):
        return ""
    reason = _list(("kind", "description"), ("links",))(value)
    return reason or next((f"{one['kind']} is no kind" for one in entries if one["kind"] not in CHANGE_KINDS), "")


def _are_examples(value: str) -> str:
    """Check examples: each is an object with kind, version and name."""
    entries = yaml.safe_load(value)
    if not isinstance(entries, list):
        return "not a list"
    is_object = all(isinstance(one, dict) and {"apiVersion", "kind", "metadata"} <= one.keys() for one in entries)
    return "" if is_object else "an entry is no object with apiVersion, kind and metadata"


def _is_key(value: str) -> str:
    """Check a signing key, which needs the address of the public key."""
    document = yaml.safe_load(value)
    return "" if isinstance(document, dict) and document.get("url") else "no url of the public key"


_SHARED: Final[dict[str, Callable[[str], str]]] = {
    "alternativeName": _is_text,
    "category": _choice(CATEGORIES),
    "changes": _are_changes,
    "containsSecurityUpdates": _is_boolean,
    "license": _is_text,
    "prerelease": _is_boolean,
    "recommendations": lambda value: _are_links(value, ("url",)),
    "screenshots": lambda value: _are_links(value, ("title", "url")),
}
CHART_RULES: Final[dict[str, Callable[[str], str]]] = _SHARED | {
    "crds": _list(("kind", "version", "name", "displayName", "description")),
    "crdsExamples": _are_examples,
    "images": _are_images,
    "links": _are_links,
    "maintainers": _list(("name", "email")),
    "operator": _is_boolean,
    "operatorCapabilities": _choice(CAPABILITY_LEVELS),
    "signKey": _is_key,
}
"""The annotations of a chart, with the rule for each."""

BUNDLE_RULES: Final[dict[str, Callable[[str], str]]] = _SHARED | {
    "imagesWhitelist": lambda value: "" if isinstance(yaml.safe_load(value), list) else "not a list",
    "install": _is_text,
}
"""The annotations of a ClusterServiceVersion, with the rule for each."""
