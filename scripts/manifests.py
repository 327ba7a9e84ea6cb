"""Write the generated files for Kubernetes: CRDs, the schema of broker-group, READMEs, dashboard and `manifests/`.

    gantry_spec.manifest.crd     -> charts/gantry-operator/templates/crd.yaml, manifests/crd.yaml,
                                    charts/broker-group/values.schema.json
    gantry_spec.admission        -> charts/gantry-operator/templates/admission.yaml
    gantry_spec.pipelines.crds   -> charts/gantry-operator/templates/crd-pipelines.yaml, manifests/crd-pipelines.yaml
    Chart.yaml and values.yaml   -> README.md of the same chart
    scripts/artifact_hub.py      -> the annotations in Chart.yaml, from the CRDs, the samples and values.yaml
    scripts/dashboard.py         -> charts/gantry-operator/dashboards/gantry.json
    the chart, by helm template  -> manifests/operator.yaml, for installation with kubectl

`make manifests` writes them, and a test checks that they are up to date. They are not edited by hand.
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

from artifact_hub import chart_text  # noqa: E402 - scripts in the same folder, not a package
from dashboard import dashboard_text  # noqa: E402

from gantry_spec.admission import GUARDS, Guard, binding_spec, policy_spec  # noqa: E402
from gantry_spec.manifest.crd import NAME_CHARACTERS_MAX, crd, group_schema  # noqa: E402
from gantry_spec.pipelines.crds import pipeline_crds  # noqa: E402

CHARTS = ("gantry-operator", "broker-group")
NAMESPACE = "gantry-system"
NOTE = "# Written by scripts/manifests.py (`make manifests`); edit its source there.\n"
KUBERNETES_VERSION = "1.34.0"
"""The version for which Helm renders the templates."""

USERS = "EXEMPT_USERS"
"""The place of the users whom the admission policies refuse nothing."""

GUARD_VALUES = {"definition": ".Values.crds.keep"}
"""The values on which an admission policy depends: a definition that need not be kept may be deleted."""

VALUE = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]+):")
"""A line of values.yaml with the name of a value."""


def plain_pages(root: Path) -> dict[Path, str]:
    """Return the path and the text of every file that needs no Helm."""
    charts = root / "charts"
    found = {
        charts / "gantry-operator/templates/crd.yaml": crd_template(crd()),
        charts / "gantry-operator/templates/crd-pipelines.yaml": crd_template(*pipeline_crds()),
        charts / "gantry-operator/templates/admission.yaml": admission_template(),
        charts / "gantry-operator/dashboards/gantry.json": dashboard_text(),
        charts / "broker-group/values.schema.json": json.dumps(group_values_schema(), indent=2) + "\n",
        root / "manifests/crd.yaml": NOTE + _yaml(crd()),
        root / "manifests/crd-pipelines.yaml": NOTE + "".join(_yaml(one) for one in pipeline_crds()),
    }
    found |= {charts / name / "Chart.yaml": chart_text(root, charts / name) for name in CHARTS}
    return found | {charts / name / "README.md": readme(charts / name) for name in CHARTS}


def helm_pages(root: Path, helm: Path) -> dict[Path, str]:
    """Return the path and the text of every file that is rendered by Helm."""
    values = ("--set", "crds.create=false")
    text = template(helm, root / "charts/gantry-operator", "gantry-operator", NAMESPACE, *values, "--skip-tests")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    return {root / "manifests/operator.yaml": f"{NOTE}{_yaml(namespace)}{text}"}


def template(helm: Path, chart: Path, release: str, namespace: str, *options: str) -> str:
    """Return the output of `helm template`. Raises CalledProcessError with the output of Helm."""
    words = [str(helm), "template", release, str(chart), "--namespace", namespace]
    words += ["--kube-version", KUBERNETES_VERSION, *options]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def crd_template(*crds: dict[str, Any]) -> str:
    """Return CRDs as a template, since Helm never upgrades CRDs in the folder `crds/` of a chart."""
    lines = [NOTE.rstrip("\n"), "{{- if .Values.crds.create }}"]
    for number, document in enumerate(crds):
        rest = {name: value for name, value in document.items() if name != "metadata"}
        text = _yaml(rest)
        assert "{{" not in text, "a description must not contain template syntax"
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


def admission_template() -> str:
    """Return the admission policies and their bindings as a template, with the names of the release and its users."""
    lines = [
        NOTE.rstrip("\n"),
        "{{- if .Values.admission.enabled }}",
        '{{- $name := include "gantry-operator.name" . }}',
        '{{- $labels := include "gantry-operator.labels" . }}',
        '{{- $users := concat (list (include "gantry-operator.user" .)) .Values.admission.exemptUsers | toJson }}',
    ]
    for guard in GUARDS:
        condition = GUARD_VALUES.get(guard.name)
        lines += [f"{{{{- if {condition} }}}}"] if condition else []
        lines += _guard_lines(guard)
        lines += ["{{- end }}"] if condition else []
    return "\n".join([*lines, "{{- end }}", ""])


def _guard_lines(guard: Guard) -> list[str]:
    """Return the template of a policy and of its binding."""
    lines = []
    name = f"{{{{ $name }}}}-{guard.name}"
    for kind, spec in (("", policy_spec(guard, USERS)), ("Binding", binding_spec(name, ()))):
        text = _yaml({"spec": spec})
        assert "{{" not in text.replace(name, ""), "a message must not contain template syntax"
        lines += [
            "---",
            "apiVersion: admissionregistration.k8s.io/v1",
            f"kind: ValidatingAdmissionPolicy{kind}",
            "metadata:",
            f"  name: {name}",
            "  labels: {{- $labels | nindent 4 }}",
            text.replace(USERS, "{{ $users }}").rstrip("\n"),
        ]
    return [
        *lines,
        "  {{- with .Values.namespaces }}",
        "  matchResources:",
        "    namespaceSelector:",
        "      matchExpressions:",
        "        - key: kubernetes.io/metadata.name",
        "          operator: In",
        "          values: {{- toYaml . | nindent 12 }}",
        "  {{- end }}",
    ]


def group_values_schema() -> dict[str, Any]:
    """Return the values schema of the chart `broker-group`; its spec is the API server's without CEL rules."""
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
    """Convert a schema of the API server to JSON Schema, without additional properties."""
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
    """Return the README of a chart: its description, and all values with their defaults."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    install_command = f"helm install {about['name']} charts/{about['name']} --namespace {NAMESPACE} --create-namespace"
    if about["name"] == "broker-group":
        install_command = "helm install orders charts/broker-group --namespace shop --set spec.shards=2"
    lines = [
        "<!-- Written by scripts/manifests.py (`make manifests`) from Chart.yaml and values.yaml; edit those. -->",
        f"# {about['name']}",
        "",
        f"{about['description']}. Kubernetes {about['kubeVersion'].removesuffix('-0')}.",
        "",
        "```",
        install_command,
        "```",
        "",
        "Values are validated against a schema; unknown values are refused.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{path}` | `{default}` | {text} |" for path, default, text in described_values(chart)]
    return "\n".join(lines) + "\n"


def described_values(chart: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and meaning of every value that has a comment."""
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
    """Write all files. The first argument is the path of Helm; without it, files that need Helm are not changed."""
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
