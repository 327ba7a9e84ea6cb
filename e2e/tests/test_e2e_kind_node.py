"""The image of nodes of kind that is built here, and the machine on which they run, without making a container."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from gantry_cluster import node_agent, node_image, own_docker, provisioner, sandbox
from gantry_cluster.api import Api, Object
from gantry_cluster.errors import ClusterError
from gantry_cluster.programs import KIND, KIND_NODE, PACKAGES, Programs

from gantry_testing.programs import write_program

SCRIPTS = sorted((node_image.FILES / "usr/local/bin").iterdir())

# -- the root file system ------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root file system of a node, without Debian's packages."""
    programs, root = tmp_path / "programs", tmp_path / "root"
    programs.mkdir()
    for name in KIND_NODE:
        (programs / name).write_text(name)
    node_image.install_files(root, Programs(programs), pause="registry.example/pause:9")
    return root


def test_node_has_what_kind_reads_and_calls(root: Path) -> None:
    """kind reads the version as one line, applies two manifests, and runs kubeadm and kubectl."""
    storage = list(yaml.safe_load_all((root / "kind/manifests/default-storage.yaml").read_text()))
    network = list(yaml.safe_load_all((root / "kind/manifests/default-cni.yaml").read_text()))

    assert re.fullmatch(r"v1\.\d+\.\d+", (root / "kind/version").read_text())
    [default] = storage
    assert default["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
    assert (default["metadata"]["name"], default["provisioner"]) == (provisioner.CLASS, provisioner.PROVISIONER)
    assert [one["kind"] for one in network] == ["ClusterRole", "ClusterRoleBinding"]
    for program in ("kubeadm", "kubectl", "kubelet", "crictl", "node-entrypoint"):
        assert os.access(root / "usr/local/bin" / program, os.X_OK), program


def test_agent_may_call_all_of_the_api_that_it_uses(root: Path) -> None:
    """The manifest grants the collections and verbs of the agent to the kubelets, and no more."""
    role, binding = yaml.safe_load_all((root / "kind/manifests/default-cni.yaml").read_text())
    granted = {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}

    assert granted == {
        ("nodes", "list"),
        ("persistentvolumeclaims", "list"),
        *(("persistentvolumes", verb) for verb in ("list", "create", "delete")),
    }
    assert [subject["name"] for subject in binding["subjects"]] == ["system:nodes"]


def test_containerd_makes_groups_with_systemd_like_the_kubelets_of_kind(root: Path) -> None:
    """kind reads the snapshotter from this configuration; the pause image is one that the node has."""
    config = tomllib.loads((root / "etc/containerd/config.toml").read_text())
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]

    assert cri["sandbox_image"] == "registry.example/pause:9"
    assert cri["containerd"]["snapshotter"] == "overlayfs"
    assert cri["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is True
    assert Path(cri["cni"]["conf_dir"]) == node_agent.NETWORK.parent


def test_services_of_a_node_are_enabled_and_their_programs_exist(root: Path) -> None:
    """A unit that is not linked never starts, and one without its program fails."""
    units = root / "etc/systemd/system"
    for unit in node_image.ENABLED:
        target = (units / "multi-user.target.wants" / unit).readlink()
        assert (root / target.relative_to("/")).exists() or unit == "containerd.service", unit
    started = [
        line.partition("=")[2].split()[0]
        for unit in units.glob("*.service")
        if not unit.is_symlink()
        for line in unit.read_text().splitlines()
        if line.startswith("Exec")
    ]
    assert all((root / program.lstrip("/")).exists() or program == "/usr/bin/python3" for program in started)


def test_systemd_of_a_node_changes_no_setting_of_the_machine(root: Path) -> None:
    """A privileged container shares kernel settings, formats of programs and modules with the machine."""
    units = root / "etc/systemd/system"
    for unit in ("systemd-sysctl.service", "systemd-binfmt.service", "systemd-modules-load.service", "getty.target"):
        assert (units / unit).readlink() == Path("/dev/null")


def test_settings_of_the_image_are_those_that_docker_imports() -> None:
    """`docker import` refuses other instructions of a Dockerfile, such as STOPSIGNAL."""
    supported = {"CMD", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "ONBUILD", "USER", "VOLUME", "WORKDIR"}

    assert {change.split()[0] for change in node_image.CHANGES} <= supported


def test_agent_runs_with_the_modules_and_the_library_of_a_node(root: Path) -> None:
    """A node has only some modules of this package, and none of other distributions."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import gantry_cluster.node_agent"
    place = root / node_image.PYTHON.parent

    subprocess.run([sys.executable, "-I", "-S", "-c", code, place], check=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_of_a_node_are_valid(script: Path) -> None:
    """A syntax error would only show in a container that does not start."""
    subprocess.run(["sh", "-n", script], check=True)


def test_entrypoint_prints_the_line_that_kind_waits_for() -> None:
    """The pattern is kind's; without it the creation of a node ends after half a minute."""
    text = (node_image.FILES / "usr/local/bin/node-entrypoint").read_text()

    assert re.search(r'echo "detected cgroup v1"\n', text)
    assert text.rstrip().endswith("exec /sbin/init")


def test_image_of_a_node_is_found_by_name_or_id(tmp_path: Path) -> None:
    """`kind load docker-image` reads id and names of an image, and loads it if it is absent."""
    row = "localhost/gantry:e2e application/vnd.oci.image.manifest.v1+json sha256:ab 170 MiB linux/amd64 -"
    (tmp_path / "ctr").write_text(f"#!/bin/sh\necho 'REF TYPE DIGEST SIZE PLATFORMS LABELS'\necho '{row}'\n")
    (tmp_path / "ctr").chmod(0o755)
    crictl = node_image.FILES / "usr/local/bin/crictl"

    def inspect(name: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", crictl, "inspecti", name], env=environment, check=False, capture_output=True, text=True
        )

    for name in ("localhost/gantry:e2e", "sha256:ab"):
        expected = {"status": {"id": "sha256:ab", "repoTags": ["localhost/gantry:e2e"]}}
        assert json.loads(inspect(name).stdout) == expected
    assert inspect("localhost/gantry:other").returncode == 1


def test_images_of_the_control_plane_have_the_names_that_kubeadm_uses(tmp_path: Path) -> None:
    """The names come from kubeadm itself, so they change with it."""
    names = ("kube-apiserver:v1", "coredns/coredns:v2", "pause:3", "etcd:3.6-0")
    listing = "\\n".join(f"registry.example/{name}" for name in names)
    write_program(tmp_path / "kubeadm", f"print('''{listing}''')\n")

    assert node_image.image_names(Programs(tmp_path)) == {
        "kube-apiserver": "registry.example/kube-apiserver:v1",
        "coredns": "registry.example/coredns/coredns:v2",
        "pause": "registry.example/pause:3",
        "etcd": "registry.example/etcd:3.6-0",
    }


def test_changed_sources_give_another_node_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The archive is named after everything that determines it: an old one is never used for new sources."""
    monkeypatch.setattr(node_image, "wanted_folder", lambda: tmp_path / "v1.0.0-one")
    first = node_image.archive()
    monkeypatch.setattr(node_image, "wanted_folder", lambda: tmp_path / "v1.0.0-two")
    second = node_image.archive()
    monkeypatch.setattr(node_image, "PACKAGES", (*node_image.PACKAGES, "jq"))
    third = node_image.archive()
    monkeypatch.setattr(node_image, "AGENT_MODULES", node_image.AGENT_MODULES[1:])

    assert len({first, second, third, node_image.archive()}) == 4


def test_programs_of_kind_can_be_built() -> None:
    """Each program that kind, its tests or its nodes need has a Go package."""
    assert {*KIND, *KIND_NODE} <= set(PACKAGES)


# -- the agent of a node -------------------------------------------------------------------------------------------


def node(name: str, pods: str = "", *addresses: tuple[str, str]) -> Object:
    """Return a node as Kubernetes reports it."""
    return {
        "metadata": {"name": name},
        "spec": {"podCIDR": pods} if pods else {},
        "status": {"addresses": [{"type": kind, "address": one} for kind, one in addresses]},
    }


NODES = [
    node("a", "10.244.0.0/24", ("InternalIP", "172.18.0.2"), ("Hostname", "a")),
    node("b", "10.244.1.0/24", ("Hostname", "b"), ("InternalIP", "fc00::3"), ("InternalIP", "172.18.0.3")),
    node("c", "", ("InternalIP", "172.18.0.4")),
    node("d", "10.244.3.0/24"),
]


def test_node_has_a_route_to_the_pods_of_every_other_node() -> None:
    """A node without a range or an address has none yet; the own pods are on the own bridge."""
    assert node_agent.routes(NODES, "a") == {"10.244.1.0/24": "172.18.0.3"}
    assert node_agent.pods_range(NODES, "a") == "10.244.0.0/24"
    assert node_agent.pods_range(NODES, "c") is None


def test_api_server_is_read_from_the_kubelets_kubeconfig() -> None:
    """A file without a server is an error, after which the agent tries again."""
    text = "clusters:\n- cluster:\n    server: https://gantry-e2e-control-plane:6443\n  name: x\n"

    assert node_agent.server_of(text) == ("gantry-e2e-control-plane", 6443)
    with pytest.raises(ClusterError, match="no API server"):
        node_agent.server_of("clusters: []\n")


class ClaimsAndVolumes(Api):
    """An API with one waiting claim and one released volume on each of two nodes."""

    def items(self, path: str) -> list[Object]:
        """Return the claims or the volumes."""
        return [claim(name) if path == provisioner.CLAIMS else released(name) for name in ("own", "other")]

    def create(self, path: str, body: Object) -> Object:
        """Record the name of a created volume."""
        CHANGES.append(f"create {body['metadata']['name']}")
        return body

    def delete(self, path: str, **options: object) -> Object:
        """Record the name of a deleted volume."""
        CHANGES.append(f"delete {path.rpartition('/')[2]}")
        return {}


CHANGES: list[str] = []


def claim(on: str) -> Object:
    """Return a claim whose pod has this node."""
    return {
        "metadata": {"name": on, "namespace": "n", "uid": on, "annotations": {provisioner.SELECTED_NODE: on}},
        "spec": {
            "storageClassName": provisioner.CLASS,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    }


def released(on: str) -> Object:
    """Return a released volume on this node."""
    volume = provisioner.volume_for(claim(on), Path("/disk", f"pvc-old-{on}"))
    return volume | {"status": {"phase": "Released"}}


def test_agent_makes_and_deletes_only_volumes_of_its_node(tmp_path: Path) -> None:
    """Every node has an agent, and the disk of another node is not here."""
    CHANGES.clear()
    provisioner.provision(ClaimsAndVolumes(), lambda name: tmp_path if name == "own" else None)

    assert CHANGES == ["create pvc-own", "delete pvc-old-own"]
    assert [path.name for path in tmp_path.iterdir()] == ["pvc-own"]


# -- the machine of the docker engine ------------------------------------------------------------------------------


def test_controllers_that_are_not_mounted_are_found() -> None:
    """Those with a hierarchy are mounted, disabled ones cannot be, and systemd mounts two of them together."""
    table = """#subsys_name\thierarchy\tnum_cgroups\tenabled
cpu\t1\t1\t1
net_cls\t0\t1\t1
net_prio\t0\t1\t1
rdma\t0\t1\t0
hugetlb\t0\t1\t1
"""
    assert own_docker.absent_controllers(table) == ["net_cls,net_prio", "hugetlb"]


@pytest.mark.parametrize("option", ["--bundle", "--process"])
def test_runtime_removes_capabilities_that_the_machine_lacks(tmp_path: Path, option: str) -> None:
    """docker gives a privileged container all capabilities, and runc refuses those that it does not have itself."""
    runtime = own_docker.write_runtime(tmp_path / "runtime")
    (tmp_path / "runc").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "runc").chmod(0o755)
    process = {"capabilities": {"bounding": ["CAP_CHOWN", "CAP_INVENTED"], "ambient": None}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"process": process} if option == "--bundle" else process))
    words = ["create", option, str(tmp_path if option == "--bundle" else file), "name"]

    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    passed = subprocess.run([runtime, *words], env=environment, check=True, capture_output=True, text=True).stdout

    content = json.loads(file.read_text())
    assert content.get("process", content)["capabilities"] == {"bounding": ["CAP_CHOWN"], "ambient": []}
    assert passed.split() == words


def test_changed_packages_of_the_machine_give_another_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer hides the list of packages below it, so it is valid only for that list."""
    names = [sandbox.layer_name(b"one"), sandbox.layer_name(b"two")]
    monkeypatch.setattr(sandbox, "PACKAGES", (*sandbox.PACKAGES, "jq"))

    assert len({*names, sandbox.layer_name(b"one")}) == 3
