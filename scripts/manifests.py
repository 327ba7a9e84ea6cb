"""Write what is shipped for Kubernetes from its source: the CRD, the charts' schemas and READMEs, and `manifests/`.

    gantry_spec.manifest.crd     -> charts/gantry-operator/templates/crd.yaml, manifests/crd.yaml,
                                    charts/broker-group/values.schema.json
    gantry_spec.pipelines.crds   -> charts/gantry-operator/templates/crd-pipelines.yaml, manifests/crd-pipelines.yaml
    values.yaml of each chart    -> its README.md
    scripts/dashboard.py         -> charts/gantry-operator/dashboards/gantry.json
    the chart, by helm template  -> manifests/operator.yaml, for whoever has kubectl alone

`make manifests` writes them; a test compares. Nothing of it is edited by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from dashboard import dashboard_text  # noqa: E402 - a neighbour, and no package

from gantry_spec.manifest.crd import NAME_CHARACTERS_MAX, crd, group_schema  # noqa: E402
from gantry_spec.pipelines.crds import pipeline_crds  # noqa: E402

CHARTS = ("gantry-operator", "broker-group")
NAMESPACE = "gantry-system"
NOTE = "# Written by scripts/manifests.py (`make manifests`); edit its source there.\n"
KUBERNETES_VERSION = "1.34.0"
VALUE = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]+):")


def plain_pages(root: Path) -> dict[Path, str]:
    """Every file that needs no helm, and what should be in it."""
    charts = root / "charts"
    found = {
        charts / "gantry-operator/templates/crd.yaml": crd_template(crd()),
        charts / "gantry-operator/templates/crd-pipelines.yaml": crd_template(*pipeline_crds()),
        charts / "gantry-operator/dashboards/gantry.json": dashboard_text(),
        charts / "broker-group/values.schema.json": json.dumps(group_values_schema(), indent=2) + "\n",
        root / "manifests/crd.yaml": NOTE + _yaml(crd()),
        root / "manifests/crd-pipelines.yaml": NOTE + "".join(_yaml(one) for one in pipeline_crds()),
    }
    return found | {charts / name / "README.md": readme(charts / name) for name in CHARTS}


def helm_pages(root: Path, helm: Path) -> dict[Path, str]:
    """What helm makes of the charts."""
    values = ("--set", "crds.create=false")
    text = template(helm, root / "charts/gantry-operator", "gantry-operator", NAMESPACE, *values, "--skip-tests")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    return {root / "manifests/operator.yaml": f"{NOTE}{_yaml(namespace)}{text}"}


def template(helm: Path, chart: Path, release: str, namespace: str, *options: str) -> str:
    """`helm template`. Raises CalledProcessError with what helm said."""
    words = [str(helm), "template", release, str(chart), "--namespace", namespace]
    words += ["--kube-version", KUBERNETES_VERSION, *options]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def crd_template(*crds: dict[str, Any]) -> str:
    """CRDs as a template: helm never upgrades what lies in a chart's `crds/`."""
    lines = [NOTE.rstrip("\n"), "{{- if .Values.crds.create }}"]
    for number, document in enumerate(crds):
        rest = {name: value for name, value in document.items() if name != "metadata"}
        text = _yaml(rest)
        assert "{{" not in text, "a description would be taken for a template"
        lines += ["---"] if number else []
        lines += [
            "metadata:",
            f"  name: {document['metadata']['name']}",
            '  labels: {{- include "gantry-operator.labels" . | nindent 4 }}',
            "  {{- if .Values.crds.keep }}",
            "  annotations:",
            "    helm.sh/resource-policy: keep",
            "  {{- end }}",
            text.rstrip("\n"),
        ]
    return "\n".join([*lines, "{{- end }}", ""])


def group_values_schema() -> dict[str, Any]:
    """Of the chart `broker-group`: its own values, and a spec that takes what the API server would, and no more."""
    text = {"type": "string"}
    strings = {"type": "object", "additionalProperties": text}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart broker-group",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {"type": "object"},
            "name": text | {"maxLength": NAME_CHARACTERS_MAX, "pattern": "^([a-z]([-a-z0-9]*[a-z0-9])?)?$"},
            "labels": strings,
            "annotations": strings,
            "keep": {"type": "boolean"},
            "spec": strict(group_schema()["properties"]["spec"]),
            "test": {"type": "object", "additionalProperties": False, "properties": {"image": text}},
        },
    }


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """From the API server's dialect to JSON Schema's, where what is not named is refused."""
    found = {
        name: value
        for name, value in schema.items()
        if not name.startswith("x-") and name not in ("nullable", "default")
    }
    if schema.get("x-kubernetes-int-or-string"):
        found |= {"type": ["integer", "string"]}
    if schema.get("nullable"):
        found |= {"type": [found["type"], "null"]}
    if "properties" in schema:
        found["properties"] = {name: strict(inner) for name, inner in schema["properties"].items()}
        found["additionalProperties"] = False
    if "items" in schema:
        found["items"] = strict(schema["items"])
    return found


def readme(chart: Path) -> str:
    """What the chart is, and every value with its default."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    own = f"helm install {about['name']} charts/{about['name']} --namespace {NAMESPACE} --create-namespace"
    if about["name"] == "broker-group":
        own = "helm install orders charts/broker-group --namespace shop --set spec.shards=2"
    lines = [
        "<!-- Written by scripts/manifests.py (`make manifests`) from Chart.yaml and values.yaml; edit those. -->",
        f"# {about['name']}",
        "",
        f"{about['description']}. Kubernetes {about['kubeVersion'].removesuffix('-0')}.",
        "",
        "```",
        own,
        "```",
        "",
        "Values are checked against a schema; one that is not here is refused.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{path}` | `{default}` | {text} |" for path, default, text in described_values(chart)]
    return "\n".join(lines) + "\n"


def described_values(chart: Path) -> Iterator[tuple[str, str, str]]:
    """Path, default and meaning of every value that has a line of its own."""
    lines = (chart / "values.yaml").read_text().splitlines()
    values = yaml.safe_load("\n".join(lines))
    folders: list[str] = []
    for number, line in enumerate(lines):
        match = VALUE.match(line)
        if match is None:
            continue
        folders[len(match["indent"]) // 2 :] = [match["name"]]
        before = lines[number - 1].strip() if number else ""
        if before.startswith("# -- "):
            value: Any = values
            for folder in folders:
                value = value[folder]
            yield ".".join(folders), json.dumps(value), before.removeprefix("# -- ")


def _yaml(document: dict[str, Any]) -> str:
    return (
        "---\n" + yaml.safe_dump(document, sort_keys=False, width=120)
        if "metadata" in document
        else yaml.safe_dump(document, sort_keys=False, width=120)
    )


def main() -> None:
    """Write all of them; the first argument is helm's path, without it what needs helm is left as it is."""
    pages = plain_pages(ROOT)
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if len(sys.argv) > 1:
        pages |= helm_pages(ROOT, Path(sys.argv[1]))
    for path, text in pages.items():
        path.write_text(text)
    print(f"wrote {len(pages)} files")


if __name__ == "__main__":
    main()
