"""The OLM bundle is made of the chart's objects, the CRDs and the samples, and OLM's own validators accept it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import olm_bundle
import pytest
import yaml
from charts_scene import OPERATOR, ROOT, documents
from olm_bundle import BundleError, Release, bundle_files, write_bundle

from gantry_operator.settings import parse_names
from gantry_spec.manifest import read_group
from gantry_spec.manifest.crd import crd
from gantry_spec.pipelines.crds import pipeline_crds
from gantry_testing.programs import bundle_validator_program

Files = dict[str, str]
VERSION = "1.4.0"
IMAGES = {"operator": "registry.example/operator:a", "broker": "registry.example/broker@sha256:b"}
SERVICE_VERSION = "manifests/gantry-operator.clusterserviceversion.yaml"
GROUPS = "manifests/gantry.dev_brokergroups.yaml"


def bundle(**changes: Any) -> Files:
    """Return the files of a bundle with a published release's facts."""
    return (
        bundle_files(ROOT, Release(**{"version": VERSION, "images": IMAGES, **changes})) if changes else dict(usual())
    )


@cache
def usual() -> Files:
    """Return the files of the bundle that most tests read; to generate it takes longer than the rest of a test."""
    return bundle_files(ROOT, Release(version=VERSION, images=IMAGES))


def service_version(files: Files) -> dict[str, Any]:
    """Return the ClusterServiceVersion of a bundle."""
    found: dict[str, Any] = yaml.safe_load(files[SERVICE_VERSION])
    return found


def install(files: Files) -> dict[str, Any]:
    """Return the part of a bundle that OLM installs."""
    found: dict[str, Any] = service_version(files)["spec"]["install"]["spec"]
    return found


def container(files: Files) -> dict[str, Any]:
    """Return the operator's container in a bundle."""
    [deployment] = install(files)["deployments"]
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def rules_of(entries: list[dict[str, Any]]) -> set[str]:
    """Return rules as texts that can be compared, without their order."""
    return {json.dumps(rule, sort_keys=True) for one in entries for rule in one["rules"]}


def test_bundle_has_the_generated_definitions() -> None:
    """The CRDs are those of the chart, one in each file, and the service version owns every one."""
    files = bundle()
    found = [yaml.safe_load(text) for text in files.values() if "kind: CustomResourceDefinition" in text]
    owned = service_version(files)["spec"]["customresourcedefinitions"]["owned"]
    expected = {one["metadata"]["name"]: one for one in (crd(), *pipeline_crds())}

    assert {one["metadata"]["name"]: one for one in found} == expected
    assert [one["name"] for one in owned] == list(expected)
    assert all(one["description"] for one in owned)


def test_bundle_installs_the_deployment_of_the_chart() -> None:
    """Only the labels of Helm, the images, the version and the source of the namespaces differ."""
    [rendered] = [
        one
        for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text())
        if one and one["kind"] == "Deployment"
    ]
    [expected] = rendered["spec"]["template"]["spec"]["containers"]
    found = container(bundle())
    by_name = {one["name"]: one for one in found["env"]}

    assert found["image"] == IMAGES["operator"]
    assert by_name["GANTRY_BROKER_IMAGE"]["value"] == IMAGES["broker"]
    assert by_name["GANTRY_PIPELINE_IMAGE"]["value"] == f"gantry-pipelines:{VERSION}"
    changed = {"GANTRY_BROKER_IMAGE", "GANTRY_PIPELINE_IMAGE", "GANTRY_NAMESPACES"}
    assert [one for one in found["env"] if one["name"] not in changed] == [
        one for one in expected["env"] if one["name"] not in changed
    ]
    assert {name: value for name, value in found.items() if name not in ("env", "image")} == {
        name: value for name, value in expected.items() if name not in ("env", "image")
    }


def test_related_images_are_those_of_the_pods() -> None:
    """A mirror of them is complete: the operator's image, and those of brokers and pipelines."""
    spec = service_version(bundle())["spec"]

    assert spec["relatedImages"] == [
        {"name": "operator", "image": IMAGES["operator"]},
        {"name": "broker", "image": IMAGES["broker"]},
        {"name": "pipelines", "image": f"gantry-pipelines:{VERSION}"},
    ]


@pytest.mark.parametrize(
    ("targets", "namespaces"),
    [("gantry-system", ("gantry-system",)), ("shop", ("shop",)), ("bank,shop", ("bank", "shop")), ("", ())],
    ids=["OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"],
)
def test_every_install_mode_selects_namespaces(targets: str, namespaces: tuple[str, ...]) -> None:
    """The operator reads OLM's annotation as the list of its namespaces, where an empty one means all."""
    files = bundle()
    modes = service_version(files)["spec"]["installModes"]
    [variable] = [one for one in container(files)["env"] if one["name"] == "GANTRY_NAMESPACES"]

    assert [one["type"] for one in modes if one["supported"]] == list(olm_bundle.INSTALL_MODES)
    assert variable == {
        "name": "GANTRY_NAMESPACES",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['olm.targetNamespaces']"}},
    }
    assert parse_names(targets) == namespaces


def test_operator_gets_exactly_the_permissions_of_the_chart() -> None:
    """No rule is lost or added; in the whole cluster it only reads Nodes and PersistentVolumes."""
    every = [one for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if one]
    bindings = [one for one in every if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    bound = {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings}
    roles = [one for one in every if (one["kind"], one["metadata"]["name"]) in bound]
    found = install(bundle())

    assert len(roles) == len(bindings) == 3
    assert rules_of([*found["permissions"], *found["clusterPermissions"]]) == rules_of(roles)
    [cluster] = found["clusterPermissions"][0]["rules"]
    assert cluster == {
        "apiGroups": [""],
        "resources": ["nodes", "persistentvolumes"],
        "verbs": ["get", "list", "watch"],
    }


@pytest.mark.needs_helm
def test_permissions_in_namespaces_equal_those_of_the_chart() -> None:
    """A chart for one namespace grants there what OLM grants there, but its role of executors is no ClusterRole."""
    rendered = documents(OPERATOR, "--set", "namespaces={shop}")
    roles = [
        one for one in rendered if one["kind"] == "Role" and one["metadata"]["name"] != "gantry-operator-executors"
    ]
    expected = {rule.replace('"roles"]', '"clusterroles"]') if '"bind"' in rule else rule for rule in rules_of(roles)}

    assert rules_of(install(bundle())["permissions"]) == expected


def test_objects_have_no_namespace_and_no_label_of_helm() -> None:
    """OLM sets the namespace; a label that names Helm or the chart would be wrong."""
    files = bundle()
    objects = [yaml.safe_load(text) for path, text in files.items() if path.startswith("manifests/")]

    assert {one["kind"] for one in objects} == {
        *("ClusterServiceVersion", "CustomResourceDefinition"),
        *("ClusterRole", "NetworkPolicy", "PodDisruptionBudget", "Service"),
    }
    assert all("namespace" not in one["metadata"] for one in objects)
    assert not [path for path, text in files.items() if "helm.sh/chart" in text or "managed-by" in text]
    labels = [one["metadata"]["labels"] for one in objects if "labels" in one["metadata"]]
    assert {one["app.kubernetes.io/version"] for one in labels} == {VERSION}


def test_examples_are_valid_and_have_every_kind() -> None:
    """A console offers them as the first text of a form."""
    examples = json.loads(service_version(bundle())["metadata"]["annotations"]["alm-examples"])

    assert {one["kind"] for one in examples} == {one["spec"]["names"]["kind"] for one in (crd(), *pipeline_crds())}
    assert read_group(json.dumps(examples[0])).metadata.name == "orders"


def test_forms_have_the_important_fields() -> None:
    """Each field has the description of the CRD, and a form for its type."""
    [group] = [
        one
        for one in service_version(bundle())["spec"]["customresourcedefinitions"]["owned"]
        if one["kind"] == "BrokerGroup"
    ]
    forms = {one["path"]: one["x-descriptors"] for one in group["specDescriptors"]}
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    shown = {one["path"]: one for one in group["specDescriptors"]}

    assert forms["shards"] == ["urn:alm:descriptor:com.tectonic.ui:number"]
    assert forms["replication.mode"] == [
        f"urn:alm:descriptor:com.tectonic.ui:select:{mode}"
        for mode in schema["replication"]["properties"]["mode"]["enum"]
    ]
    assert forms["failover.switchback"] == ["urn:alm:descriptor:com.tectonic.ui:booleanSwitch"]
    assert forms["access.aclSecret"] == ["urn:alm:descriptor:io.kubernetes:Secret"]
    assert forms["resources"] == ["urn:alm:descriptor:com.tectonic.ui:resourceRequirements"]
    assert shown["storage.size"]["description"] == schema["storage"]["properties"]["size"]["description"]
    assert shown["nameServers.replicas"]["displayName"] == "Name servers: replicas"
    assert {"phase", "conditions", "atRisk"} <= {one["path"] for one in group["statusDescriptors"]}


def test_publisher_adds_contacts_and_history() -> None:
    """Facts that the tree does not have come from options, and are absent without them."""
    facts = {
        "maintainers": (("Ada", "ada@example.org"),),
        "repository": "https://example.org/gantry",
        "replaces": "1.3.0",
        "created_at": "2026-01-31T00:00:00Z",
    }
    full, bare = service_version(bundle(**facts)), service_version(bundle())

    assert full["spec"]["maintainers"] == [{"name": "Ada", "email": "ada@example.org"}]
    assert full["spec"]["links"] == [{"name": "Source code", "url": "https://example.org/gantry"}]
    assert full["spec"]["replaces"] == "gantry-operator.v1.3.0"
    assert full["metadata"]["annotations"]["createdAt"] == "2026-01-31T00:00:00Z"
    assert not {"maintainers", "links", "replaces"} & set(bare["spec"])
    assert bare["metadata"]["annotations"]["olm.skipRange"] == f"<{VERSION}"


@pytest.mark.parametrize(
    ("version", "channel", "maturity"),
    [("0.9.0", "candidate", "alpha"), ("1.4.0", "stable", "stable"), ("1.4.0-rc.1", "candidate", "alpha")],
)
def test_prereleases_are_not_in_the_stable_channel(version: str, channel: str, maturity: str) -> None:
    """A subscription to `stable` never gets a version that begins with 0, or a release candidate."""
    files = bundle(version=version)
    metadata = yaml.safe_load(files["metadata/annotations.yaml"])["annotations"]
    names = [name for name in metadata if ".channel" in name]

    assert [metadata[name] for name in names] == [channel, channel]
    assert service_version(files)["spec"]["maturity"] == maturity
    assert all(f"LABEL {name}={value}\n" in files["bundle.Dockerfile"] for name, value in metadata.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "1.4"}, "--version 1.4: expected a semantic version"),
        ({"replaces": "old"}, "--replaces old: expected a semantic version"),
        ({"replaces": VERSION}, "a version cannot replace itself"),
        ({"images": {"operator": "two words"}}, "image 'two words': expected a reference"),
        ({"channel": "Stable!"}, "--channel Stable!: expected lower-case"),
        ({"maintainers": (("", "ada@example.org"),)}, "expected NAME <MAIL ADDRESS>"),
        ({"repository": "example.org"}, "expected an address that begins with https://"),
    ],
    ids=["version", "replaces", "itself", "image", "channel", "maintainer", "repository"],
)
def test_wrong_options_are_refused(changes: dict[str, Any], message: str) -> None:
    """The message names the option, the value and what was expected."""
    with pytest.raises(BundleError) as error:
        bundle(**changes)

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: Service\n", "kind: Ingress\n", "Ingress gantry-operator: add this kind"),
        ("resources: [nodes, persistentvolumes]", "resources: [nodes, pods]", "separate the rule of nodes"),
    ],
    ids=["unknown kind", "mixed rule"],
)
def test_changes_of_the_chart_that_need_a_decision_are_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    """An object is never left out silently, and a permission never becomes wider than in the chart."""
    for name in ("charts", "manifests/samples", "operator/olm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "manifests/operator.yaml").read_text()
    assert old in text
    (tmp_path / "manifests/operator.yaml").write_text(text.replace(old, new))

    with pytest.raises(BundleError) as error:
        bundle_files(tmp_path, Release(version=VERSION, images={}))

    assert message in str(error.value)


def test_older_bundle_is_replaced(tmp_path: Path) -> None:
    """No file of it remains, since OLM reads every file."""
    write_bundle(tmp_path, {**bundle(), "manifests/removed.yaml": "kind: Service\n"})
    write_bundle(tmp_path, bundle())

    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(bundle())


def test_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    """A wrong argument must not delete anything."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/mine.yaml").write_text("mine")

    with pytest.raises(BundleError, match="neither empty nor a bundle"):
        write_bundle(tmp_path, bundle())

    assert (tmp_path / "manifests/mine.yaml").read_text() == "mine"


def test_command_writes_a_bundle_and_explains_errors(tmp_path: Path) -> None:
    """It prints what it wrote, and refuses wrong options with exit code 2 and one line."""
    words = [sys.executable, str(ROOT / "scripts/olm_bundle.py")]
    options = ["--version", "0.2.0", "--image", "registry.example/o:1", "--maintainer", "Ada <ada@example.org>"]
    good = subprocess.run([*words, *options, str(tmp_path)], capture_output=True, text=True, check=False)
    bad = subprocess.run([*words, "--version", "new"], capture_output=True, text=True, check=False)
    written = yaml.safe_load((tmp_path / SERVICE_VERSION).read_text())

    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout == f"wrote 13 files to {tmp_path}\n"
    assert written["metadata"]["name"] == "gantry-operator.v0.2.0"
    assert written["spec"]["maintainers"] == [{"name": "Ada", "email": "ada@example.org"}]
    assert bad.returncode == 2
    assert bad.stderr == "olm-bundle: --version new: expected a semantic version, for example 0.2.0\n"


# -- OLM's own validators ----------------------------------------------------------------------------------------------


UNVERSIONED_RULE = re.compile(
    r"warning: .* deprecated and removed in v1\.25\. .* Migrate the API\(s\) for "
    r'((cronjobs|poddisruptionbudgets): \(\["ClusterServiceVersion\.[\w.]+\.Permissions\[0\]\.Rules\[\d+\]"\]\),?)+'
)
"""A warning about permissions on kinds that had a beta version before Kubernetes 1.25: a rule has no version, so the
validator cannot see that the operator uses `batch/v1` and `policy/v1`. It may come twice, in two orders."""


def verdict(files: Files, folder: Path) -> tuple[int, list[str]]:
    """Return the exit code of the validator for a bundle, and its lines."""
    program = bundle_validator_program()
    assert program is not None
    write_bundle(folder, files)
    result = subprocess.run([str(program), str(folder)], capture_output=True, text=True, check=False)
    lines = [*result.stdout.splitlines(), *result.stderr.splitlines()]
    return result.returncode, [line for line in lines if not UNVERSIONED_RULE.fullmatch(line)]


@pytest.mark.needs_bundle_validator
@pytest.mark.parametrize("version", ["0.1.0", "1.4.0"])
def test_bundle_passes_the_validators_of_olm(version: str, tmp_path: Path) -> None:
    """There is no error, and no warning except the one that every operator with such permissions gets."""
    code, lines = verdict(bundle(version=version), tmp_path)

    assert code == 0
    assert len(lines) == 1 and lines[0].startswith("0 errors, ")


Change = Callable[[dict[str, Any]], Any]


def changed(path: str, change: Change) -> Files:
    """Return a bundle with one changed file."""
    files = bundle()
    document = yaml.safe_load(files[path])
    change(document)
    return files | {path: yaml.safe_dump(document)}


@pytest.mark.needs_bundle_validator
def test_missing_definition_is_refused(tmp_path: Path) -> None:
    """The service version owns a kind that the bundle does not define."""
    code, lines = verdict({path: text for path, text in bundle().items() if path != GROUPS}, tmp_path)

    assert code == 1
    assert [line for line in lines if 'Kind=BrokerGroup" not found in bundle' in line], lines


@pytest.mark.needs_bundle_validator
@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (SERVICE_VERSION, lambda one: one["spec"]["customresourcedefinitions"]["owned"].pop(), "is present in bundle"),
        (SERVICE_VERSION, lambda one: one["metadata"].update(name="operator_latest"), "metadata.name"),
        (SERVICE_VERSION, lambda one: one["spec"].update(minKubeVersion="new"), "MinKubeVersion"),
        (
            SERVICE_VERSION,
            lambda one: one["metadata"]["annotations"].update(capabilities="All"),
            "not a valid capabilities level",
        ),
        (
            SERVICE_VERSION,
            lambda one: one["metadata"]["annotations"].update(categories="Brokers"),
            "is not in the set of standard categories",
        ),
        (
            "manifests/gantry-operator.poddisruptionbudget.yaml",
            lambda one: one["spec"].update(maxUnavailable=0),
            "maxUnavailable field cannot be set to 0",
        ),
        (
            "manifests/gantry-operator.service.yaml",
            lambda one: one.update(kind="Deployment"),
            "Deployment is not supported type for registryV1 bundle",
        ),
        (
            "metadata/annotations.yaml",
            lambda one: one["annotations"].pop("operators.operatorframework.io.bundle.package.v1"),
            'Missing annotation "operators.operatorframework.io.bundle.package.v1"',
        ),
    ],
    ids=["unowned definition", "name", "kubernetes version", "capability", "category", "budget", "kind", "annotation"],
)
def test_planted_errors_are_refused(path: str, change: Change, message: str, tmp_path: Path) -> None:
    """The validators fail for each of them, so their silence about the real bundle means something."""
    code, lines = verdict(changed(path, change), tmp_path)

    assert code == 1
    assert [line for line in lines if line.startswith("error: ") and message in line], lines


@pytest.mark.needs_bundle_validator
def test_version_that_is_no_version_is_refused(tmp_path: Path) -> None:
    """The validator cannot read such a service version at all."""
    code, lines = verdict(changed(SERVICE_VERSION, lambda one: one["spec"].update(version="newest")), tmp_path)

    assert code == 2
    assert "is no bundle" in lines[-1]


@pytest.mark.needs_bundle_validator
def test_missing_resources_are_a_warning(tmp_path: Path) -> None:
    """Warnings are printed too, so that the test of the real bundle fails for them."""

    def remove(document: dict[str, Any]) -> None:
        [deployment] = document["spec"]["install"]["spec"]["deployments"]
        del deployment["spec"]["template"]["spec"]["containers"][0]["resources"]

    code, lines = verdict(changed(SERVICE_VERSION, remove), tmp_path)

    assert code == 0
    assert lines[0].startswith("warning: ") and "resource requests" in lines[0]
    assert len(lines) == 2 and lines[1].startswith("0 errors, ")
