"""Write an OLM bundle of the operator, in the format registry+v1, from the files that `make manifests` generates.

    manifests/operator.yaml     -> the Deployment, permissions, Service, NetworkPolicy, PodDisruptionBudget, roles
    gantry_spec                 -> the CRDs, and the descriptions of their fields for forms of a console
    manifests/samples           -> the examples
    the chart's Chart.yaml      -> version, keywords, short description, the oldest version of Kubernetes
    scripts/artifact_hub.py     -> license, capability level, category, and which samples are examples
    operator/olm                -> the description and the icon

    scripts/olm-bundle --version 0.2.0 --image registry.example/gantry-operator:0.2.0 \\
        --broker-image registry.example/gantry:0.2.0 --pipeline-image registry.example/gantry-pipelines:0.2.0

The bundle is not committed, because its version, images, channel and contacts are known only at a release, and
everything else in it is generated from committed files that a test keeps up to date. `scripts/bundle-validator` builds
a program that validates a bundle without a network.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import artifact_hub  # noqa: E402 - scripts in the same folder, not a package
from block_yaml import block_yaml  # noqa: E402
from olm_forms import owned  # noqa: E402

from gantry_spec.manifest.crd import crd  # noqa: E402
from gantry_spec.pipelines.crds import pipeline_crds  # noqa: E402

PACKAGE: Final = "gantry-operator"
CHART: Final = "charts/gantry-operator/Chart.yaml"
PROVIDER: Final = "The Gantry authors"
SEMANTIC_VERSION: Final = re.compile(
    r"(?P<major>0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?P<prerelease>-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)
HELM_LABELS: Final = frozenset({"app.kubernetes.io/managed-by", "helm.sh/chart"})
"""Labels of the chart that are not true of objects that OLM creates."""

CLUSTER_SCOPED: Final = frozenset({"nodes", "persistentvolumes"})
"""The resources without a namespace that the operator reads. OLM grants other permissions only in the namespaces of the
OperatorGroup. The permission to `bind` a ClusterRole is needed where the RoleBinding is, so it is one of these."""

OBJECT_KINDS: Final = frozenset({"ClusterRole", "NetworkPolicy", "PodDisruptionBudget", "Service"})
"""The kinds of the chart's objects that a bundle contains as files of their own."""

CREATED_BY_OLM: Final = frozenset({"Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding"})
"""The kinds that OLM creates itself, by the ClusterServiceVersion and the user's OperatorGroup."""

NOT_IN_BUNDLES: Final = frozenset({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"})
"""The kinds that OLM does not install from a bundle; a user applies them from the chart."""

NAMESPACES_VARIABLE: Final = "GANTRY_NAMESPACES"
TARGET_NAMESPACES: Final = "metadata.annotations['olm.targetNamespaces']"
"""The annotation that OLM adds to the operator's pods: names separated by commas, empty for all namespaces."""

IMAGE_VARIABLES: Final = {"broker": "GANTRY_BROKER_IMAGE", "pipelines": "GANTRY_PIPELINE_IMAGE"}
INSTALL_MODES: Final = ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")


class BundleError(Exception):
    """An option or a source file is not usable for a bundle; the message gives the remedy."""


@dataclass(frozen=True)
class Release:
    """The facts about a release that are not in the tree."""

    version: str
    images: dict[str, str]
    """The images by name: `operator`, `broker`, `pipelines`. A missing one is the chart's, tagged with the version."""

    channel: str = ""
    """The channel; empty for `candidate` if the version is a prerelease or begins with 0, otherwise for `stable`."""

    replaces: str = ""
    created_at: str = ""
    repository: str = ""
    maintainers: tuple[tuple[str, str], ...] = ()
    """The names and mail addresses of the maintainers."""

    def __post_init__(self) -> None:
        for option, version in (("--version", self.version), ("--replaces", self.replaces)):
            if version and not SEMANTIC_VERSION.fullmatch(version):
                raise BundleError(f"{option} {version}: expected a semantic version, for example 0.2.0")
        if self.replaces == self.version:
            raise BundleError(f"--replaces {self.replaces}: a version cannot replace itself; give the one before it")
        for image in self.images.values():
            if not image or any(character.isspace() for character in image):
                raise BundleError(f"image {image!r}: expected a reference, for example registry.example/gantry:0.2.0")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.channel or "stable"):
            raise BundleError(f"--channel {self.channel}: expected lower-case letters, digits, dots and dashes")
        for name, address in self.maintainers:
            if not name or "@" not in address:
                raise BundleError(f"--maintainer {name} <{address}>: expected NAME <MAIL ADDRESS>")
        if self.repository and not self.repository.startswith("https://"):
            raise BundleError(f"--repository {self.repository}: expected an address that begins with https://")

    @property
    def is_prerelease(self) -> bool:
        """Whether the version is a prerelease, or begins with 0."""
        match = SEMANTIC_VERSION.fullmatch(self.version)
        assert match is not None
        return match["major"] == "0" or match["prerelease"] is not None

    @property
    def channel_name(self) -> str:
        """The channel in which the version is published."""
        return self.channel or ("candidate" if self.is_prerelease else "stable")


def bundle_files(root: Path, release: Release) -> dict[str, str]:
    """Return the path, relative to the bundle's folder, and the text of every file of the bundle."""
    chart = yaml.safe_load((root / CHART).read_text())
    text = (root / "manifests/operator.yaml").read_text()
    documents = [_for_olm(one, release.version) for one in yaml.safe_load_all(text) if one]
    definitions = [crd(), *pipeline_crds()]
    objects = list(_objects(documents))
    found = {f"manifests/{PACKAGE}.clusterserviceversion.yaml": service_version(root, release, chart, documents)}
    found |= {f"manifests/{one['spec']['group']}_{one['spec']['names']['plural']}.yaml": one for one in definitions}
    found |= {f"manifests/{one['metadata']['name']}.{one['kind'].lower()}.yaml": one for one in objects}
    annotations = bundle_annotations(release)
    found["metadata/annotations.yaml"] = {"annotations": annotations}
    labels = "".join(f"LABEL {name}={value}\n" for name, value in annotations.items())
    files = {path: block_yaml(document) for path, document in found.items()}
    return files | {
        "bundle.Dockerfile": f"FROM scratch\n\n{labels}\nCOPY manifests /manifests/\nCOPY metadata /metadata/\n"
    }


def bundle_annotations(release: Release) -> dict[str, str]:
    """Return the annotations of the bundle, which are also the labels of its image."""
    prefix = "operators.operatorframework.io.bundle"
    return {
        f"{prefix}.mediatype.v1": "registry+v1",
        f"{prefix}.manifests.v1": "manifests/",
        f"{prefix}.metadata.v1": "metadata/",
        f"{prefix}.package.v1": PACKAGE,
        f"{prefix}.channels.v1": release.channel_name,
        f"{prefix}.channel.default.v1": release.channel_name,
    }


def service_version(
    root: Path, release: Release, chart: dict[str, Any], documents: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the ClusterServiceVersion, which tells OLM how to install the operator and a console how to show it."""
    [deployment] = [one for one in documents if one["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    images = _set_images(container, release)
    _watch_target_namespaces(container)
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    namespaced, cluster = permissions(documents, account)
    spec: dict[str, Any] = {
        "displayName": "Gantry",
        "description": (root / "operator/olm/description.md").read_text(),
        "version": release.version,
        "maturity": "alpha" if release.is_prerelease else "stable",
        "minKubeVersion": chart["kubeVersion"].removeprefix(">=").removesuffix("-0"),
        "keywords": [*chart["keywords"], "messaging"],
        "provider": {"name": PROVIDER} | ({"url": release.repository} if release.repository else {}),
        "icon": [{"base64data": artifact_hub.icon(root), "mediatype": artifact_hub.ICON_TYPE}],
        "installModes": [{"type": mode, "supported": True} for mode in INSTALL_MODES],
        "install": {
            "strategy": "deployment",
            "spec": {
                "permissions": [{"serviceAccountName": account, "rules": namespaced}],
                "clusterPermissions": [{"serviceAccountName": account, "rules": cluster}],
                "deployments": [
                    {
                        "name": deployment["metadata"]["name"],
                        "label": deployment["metadata"]["labels"],
                        "spec": deployment["spec"],
                    }
                ],
            },
        },
        "customresourcedefinitions": {"owned": [owned(one) for one in (crd(), *pipeline_crds())]},
        "relatedImages": [{"name": name, "image": image} for name, image in images.items()],
    }
    if release.maintainers:
        spec["maintainers"] = [{"name": name, "email": address} for name, address in release.maintainers]
    if release.repository:
        spec["links"] = [{"name": "Source code", "url": release.repository}]
    if release.replaces:
        spec["replaces"] = f"{PACKAGE}.v{release.replaces}"
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{release.version}",
            "annotations": version_annotations(root, release, chart, documents, images["operator"]),
        },
        "spec": spec,
    }


def version_annotations(
    root: Path, release: Release, chart: dict[str, Any], documents: list[dict[str, Any]], image: str
) -> dict[str, str]:
    """Return the annotations of the ClusterServiceVersion, including those of Artifact Hub."""
    [namespace] = [one for one in documents if one["kind"] == "Namespace"]
    found = {
        "alm-examples": json.dumps(artifact_hub.examples(root), indent=2),
        "capabilities": artifact_hub.CAPABILITIES,
        "categories": "Streaming & Messaging",
        "certified": "false",
        "containerImage": image,
        "description": chart["description"],
        "support": PROVIDER,
        # Every version can be upgraded to directly from every older one: stores and resources need no conversion.
        "olm.skipRange": f"<{release.version}",
        "operatorframework.io/suggested-namespace": namespace["metadata"]["name"],
        "operatorframework.io/suggested-namespace-template": json.dumps(namespace),
        "artifacthub.io/category": artifact_hub.CATEGORY,
        "artifacthub.io/license": artifact_hub.LICENSE,
        "artifacthub.io/prerelease": json.dumps(release.is_prerelease),
    }
    found |= {"createdAt": release.created_at} if release.created_at else {}
    return found | ({"repository": release.repository} if release.repository else {})


def permissions(documents: list[dict[str, Any]], account: str) -> tuple[list[Any], list[Any]]:
    """Return the rules that a service account has in namespaces, and those that it has in the whole cluster.

    OLM grants the first ones in the operator's own namespace and in those of the OperatorGroup. If that selects all
    namespaces, OLM grants them in the whole cluster.
    """
    roles = {(one["kind"], one["metadata"]["name"]): one for one in documents if one["kind"] in ("Role", "ClusterRole")}
    namespaced: list[Any] = []
    cluster: list[Any] = []
    for name in _bound_roles(documents, account):
        for rule in roles[name]["rules"]:
            resources = set(rule["resources"])
            if resources & CLUSTER_SCOPED and not resources <= CLUSTER_SCOPED:
                raise BundleError(f"{name[1]}: separate the rule of {', '.join(sorted(resources & CLUSTER_SCOPED))}")
            (cluster if resources <= CLUSTER_SCOPED else namespaced).append(rule)
    return namespaced, cluster


def _bound_roles(documents: list[dict[str, Any]], account: str) -> list[tuple[str, str]]:
    """Return the kinds and names of the roles that are bound to a service account."""
    return [
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in documents
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and any(subject["kind"] == "ServiceAccount" and subject["name"] == account for subject in one["subjects"])
    ]


def _objects(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the objects that are files of the bundle, without their namespace, which OLM sets."""
    [deployment] = [one for one in documents if one["kind"] == "Deployment"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    bound = _bound_roles(documents, account)
    for one in documents:
        kind, metadata = one["kind"], one["metadata"]
        if kind in OBJECT_KINDS and (kind, metadata["name"]) not in bound:
            yield one | {"metadata": {name: value for name, value in metadata.items() if name != "namespace"}}
        elif kind not in OBJECT_KINDS | CREATED_BY_OLM | NOT_IN_BUNDLES | {"Deployment"}:
            raise BundleError(f"{kind} {metadata['name']}: add this kind of the chart to scripts/olm_bundle.py")


def _set_images(container: dict[str, Any], release: Release) -> dict[str, str]:
    """Set the images in the operator's container, and return them by name."""
    variables = {one["name"]: one for one in container["env"]}
    holders = {"operator": (container, "image")}
    holders |= {name: (variables[variable], "value") for name, variable in IMAGE_VARIABLES.items()}
    images = {}
    for name, (holder, key) in holders.items():
        repository = holder[key].rpartition(":")[0]
        images[name] = holder[key] = release.images.get(name) or f"{repository}:{release.version}"
    return images


def _watch_target_namespaces(container: dict[str, Any]) -> None:
    """Let the operator manage the namespaces of its OperatorGroup."""
    [variable] = [one for one in container["env"] if one["name"] == NAMESPACES_VARIABLE]
    del variable["value"]
    variable["valueFrom"] = {"fieldRef": {"fieldPath": TARGET_NAMESPACES}}


def _for_olm(value: Any, version: str) -> Any:
    """Return a document of the chart without the labels of Helm, and with the version in its labels."""
    if isinstance(value, dict):
        kept = {name: _for_olm(inner, version) for name, inner in value.items() if name not in HELM_LABELS}
        return kept | ({"app.kubernetes.io/version": version} if "app.kubernetes.io/version" in kept else {})
    return [_for_olm(inner, version) for inner in value] if isinstance(value, list) else value


def write_bundle(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a bundle in the place of an older one. Raises if the folder has anything else."""
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"{folder} is not a folder; name another one")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "metadata/annotations.yaml").is_file():
            raise BundleError(f"{folder} is neither empty nor a bundle; name another folder")
        for name in ("manifests", "metadata"):
            shutil.rmtree(folder / name, ignore_errors=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def main() -> None:
    """Write a bundle as the command line describes it."""
    parser = argparse.ArgumentParser(
        prog="scripts/olm-bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    version = yaml.safe_load((ROOT / CHART).read_text())["appVersion"]
    parser.add_argument("--version", default=version, help="the version of the operator (default: %(default)s)")
    parser.add_argument("--image", help="the operator's image (default: gantry-operator:VERSION)")
    parser.add_argument("--broker-image", metavar="IMAGE", help="the image of brokers (default: gantry:VERSION)")
    parser.add_argument(
        "--pipeline-image", metavar="IMAGE", help="the image of pipelines (default: gantry-pipelines:VERSION)"
    )
    parser.add_argument("--channel", default="", help="default: candidate for prereleases and 0.x, else stable")
    parser.add_argument("--replaces", default="", metavar="VERSION", help="the version before this one in the channel")
    parser.add_argument("--created-at", default="", metavar="TIME", help="for example 2026-01-31T00:00:00Z")
    parser.add_argument("--repository", default="", metavar="URL", help="the address of the source code")
    parser.add_argument("--maintainer", action="append", default=[], metavar="'NAME <MAIL>'", help="may be repeated")
    parser.add_argument("folder", nargs="?", default=".gantry/olm-bundle", type=Path, help="default: %(default)s")
    options = parser.parse_args()
    given = {"operator": options.image, "broker": options.broker_image, "pipelines": options.pipeline_image}
    try:
        release = Release(
            version=options.version,
            images={name: image for name, image in given.items() if image is not None},
            channel=options.channel,
            replaces=options.replaces,
            created_at=options.created_at,
            repository=options.repository,
            maintainers=tuple(parseaddr(one) for one in options.maintainer),
        )
        files = bundle_files(ROOT, release)
        write_bundle(options.folder, files)
    except BundleError as error:
        print(f"olm-bundle: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"wrote {len(files)} files to {options.folder}")


if __name__ == "__main__":
    main()
