"""Foreign clusters and kind, with stand-ins for kubectl, kind and docker that record their arguments."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from gantry_cluster import foreign, group_tests, kind, node_image, own_docker
from gantry_cluster.api import Object
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.cli import commands
from gantry_cluster.cluster import Cluster
from gantry_cluster.errors import ApiRefused, BadChoice, ClusterError, CommandFailed, MissingTool
from gantry_cluster.foreign import ClusterNotOwned, ForeignCluster, open_cluster
from gantry_cluster.groups import install_operator
from gantry_cluster.image_names import IMAGE, Images
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pods import Namespace

from gantry_testing.programs import write_program

IMAGES = Images("example.com/gantry:1", "example.com/gantry-operator:1")
CHOICE = Choice(Kind.FOREIGN, "/their/kubeconfig", "east", IMAGES)

SERVER = """
import http.server, json, os, socketserver, sys
ANSWERS = json.loads(os.environ["ANSWERS"])
print(*sys.argv[1:], file=open(os.environ["COMMANDS"], "a"))
if "config" in sys.argv:
    print("a secret")
    sys.exit()
if not ANSWERS:
    sys.exit("no route to host")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = ANSWERS.get(self.path)
        body = json.dumps(found if found is not None else {"reason": "NotFound", "message": self.path}).encode()
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def address_string(self):
        return "client"
    def log_message(self, *words): ...

path = next(word for word in sys.argv if word.startswith("--unix-socket=")).partition("=")[2]
socketserver.ThreadingUnixStreamServer(path, Handler).serve_forever()
"""
"""The stand-in for `kubectl proxy`."""

RECORDER = """
import os, sys
print(os.path.basename(sys.argv[0]), *sys.argv[1:], file=open(os.environ["COMMANDS"], "a"))
if sys.argv[1:3] == ["get", "clusters"]:
    print(os.environ.get("CLUSTERS", "No kind clusters found."))
if sys.argv[1:3] == ["get", "nodes"]:
    print("one", "two", sep="\\n")
if "{{.IndexServerAddress}}" in sys.argv:
    print(os.environ["REGISTRY"])
if sys.argv[1:3] == os.environ.get("FAILS", "").split():
    sys.exit("no space left")
"""

READY: dict[str, Object] = {"/readyz": {}, "/api/v1/nodes": {"items": []}}
CommandReader = Callable[[], list[str]]


def program(folder: Path, name: str, text: str) -> None:
    """Write an executable stand-in for a program."""
    write_program(folder / name, text)


@pytest.fixture
def read_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandReader:
    """Put stand-ins on PATH; return a function that reads the recorded command lines."""
    folder, file = tmp_path / "bin", tmp_path / "commands"
    folder.mkdir()
    file.touch()
    program(folder, "kubectl", SERVER)
    for name in ("kind", "docker", "helm"):
        program(folder, name, RECORDER)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("KUBECTL", "HELM"):
        monkeypatch.setenv(f"GANTRY_{name}", str(folder / name.lower()))
    monkeypatch.delenv(kind.PROVIDER, raising=False)
    monkeypatch.setattr(node_image, "find_built", lambda: next(tmp_path.glob("node.tar"), None))
    monkeypatch.setenv("COMMANDS", str(file))
    monkeypatch.setenv("ANSWERS", json.dumps(READY))
    return lambda: file.read_text().splitlines()


# -- a kubeconfig --------------------------------------------------------------------------------------------------


def test_kubeconfig_is_reduced_to_its_context_in_a_temporary_copy(read_commands: CommandReader) -> None:
    """The copy keeps every way to authenticate, is readable only for us, and is removed at the end."""
    with open_cluster(CHOICE) as cluster:
        file = cluster.folder.kubeconfig
        assert (file.read_text(), file.stat().st_mode & 0o077) == ("a secret\n", 0)
        assert file.parent.stat().st_mode & 0o077 == 0
        assert cluster.api.is_ready()

    assert not file.parent.exists()
    assert read_commands()[0] == "--kubeconfig=/their/kubeconfig config view --raw --flatten --minify --context=east"


def test_unreachable_cluster_is_reported_with_the_output_of_kubectl(
    read_commands: CommandReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has no secret of the kubeconfig."""
    monkeypatch.setenv("ANSWERS", "{}")

    with pytest.raises(ClusterError, match="no route to host") as fault, open_cluster(CHOICE):
        pass

    assert "secret" not in str(fault.value)


def test_faults_of_foreign_nodes_are_refused(read_commands: CommandReader, tmp_path: Path) -> None:
    """A test that has not declared what it needs gets an error, and no machine or image is touched."""
    with open_cluster(CHOICE) as cluster:
        with pytest.raises(ClusterNotOwned, match="cluster_can"):
            cluster.machines["node1"]
        with pytest.raises(ClusterNotOwned):
            cluster.load_image(tmp_path / "image.tar")
        with pytest.raises(ClusterNotOwned):
            cluster.tag_image(IMAGE, "gantry:next")
        assert cluster.provide_images(None) == IMAGES


@pytest.mark.parametrize("there", foreign.GANTRY_OBJECTS)
def test_cluster_with_an_operator_is_refused(
    read_commands: CommandReader, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing what these tests install would delete groups of others; an empty cluster is accepted."""
    with open_cluster(CHOICE) as cluster:
        cluster.refuse_if_used()
    monkeypatch.setenv("ANSWERS", json.dumps(READY | {there: {"kind": "Something"}}))

    with open_cluster(CHOICE) as cluster, pytest.raises(ClusterNotOwned, match="exists already"):
        cluster.refuse_if_used()


def test_existing_namespace_is_not_deleted_after_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that existed before belongs to others; one that a test has made is deleted."""
    ended: list[str] = []
    taken = {"theirs"}

    def create(namespace: Namespace) -> Namespace:
        if namespace.name in taken:
            raise ApiRefused(409, "AlreadyExists", namespace.name)
        return namespace

    monkeypatch.setattr(Namespace, "create", create)
    monkeypatch.setattr(Cluster, "kubectl", lambda cluster, *words: ended.append(words[2]))
    monkeypatch.setattr("gantry_cluster.namespaces.is_gone", lambda namespace: True)
    namespaces = NamespaceFactory(object.__new__(Cluster))

    namespaces.create("ours")
    with pytest.raises(ApiRefused):
        namespaces.create("theirs")
    namespaces.delete_all()

    assert ended == ["ours"]


def test_images_are_passed_to_the_chart_as_strings(
    read_commands: CommandReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag may look like a number, which the chart would refuse."""
    monkeypatch.setenv("ANSWERS", json.dumps(READY | {foreign.GANTRY_OBJECTS[0]: {"kind": "Namespace"}}))

    with open_cluster(CHOICE) as cluster:
        install_operator(cluster, None)

    [line] = [line for line in read_commands() if line.startswith("helm ")]
    for value in IMAGES.chart_values():
        assert f" --set-string {value}" in line


# -- kind ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives in place of built images."""
    monkeypatch.setattr("gantry_cluster.image_builds.ImageBuild.build_if_stale", lambda image: tmp_path / image.archive)


def test_kind_cluster_gets_our_images_and_is_deleted(
    read_commands: CommandReader, tmp_path: Path, archives: None
) -> None:
    """Every node gets the images under names with versions."""
    with kind.make_cluster(Choice(Kind.IN_CONTAINERS), lambda text: None) as made:
        assert made.images == Images("localhost/gantry:e2e", "localhost/gantry-operator:e2e", policy="Never")
        assert not any("delete" in line for line in read_commands())

    lines = read_commands()
    assert lines[1].startswith(f"kind create cluster --name gantry-e2e --config {kind.CONFIG} --kubeconfig ")
    assert f"kind load image-archive {tmp_path}/gantry.tar --name gantry-e2e" in lines
    assert f"kind load image-archive {tmp_path}/gantry-operator.tar --name gantry-e2e" in lines
    tag = "ctr --namespace=k8s.io images tag --force localhost/gantry:latest localhost/gantry:e2e"
    assert [line for line in lines if tag in line] == [f"docker exec {node} {tag}" for node in ("one", "two")]
    assert lines[-1].startswith("kind delete cluster --name gantry-e2e")


def test_named_images_of_docker_are_loaded_into_kind(
    read_commands: CommandReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If images are named, nothing is built."""
    monkeypatch.setattr(
        "gantry_cluster.image_builds.ImageBuild.build_if_stale", lambda image: pytest.fail(f"{image.name} was built")
    )
    with kind.make_cluster(Choice(Kind.IN_CONTAINERS, images=IMAGES), lambda text: None) as made:
        assert made.images == IMAGES

    assert f"kind load docker-image {IMAGES.broker} {IMAGES.operator} --name gantry-e2e" in read_commands()


@pytest.mark.parametrize("fails", ["create cluster", "load image-archive"])
def test_incomplete_kind_cluster_is_deleted(
    read_commands: CommandReader, archives: None, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is deleted after a failure of any step."""
    monkeypatch.setenv("FAILS", fails)

    choice = Choice(Kind.IN_CONTAINERS)
    with pytest.raises(CommandFailed, match="no space"), kind.make_cluster(choice, lambda text: None):
        pass

    assert read_commands()[-1].startswith("kind delete cluster --name gantry-e2e")


def test_existing_kind_cluster_is_refused(
    read_commands: CommandReader, archives: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster with our name may belong to others: it is refused and not deleted."""
    monkeypatch.setenv("CLUSTERS", "other\ngantry-e2e")

    choice = Choice(Kind.IN_CONTAINERS)
    with pytest.raises(ClusterError, match="exists already"), kind.make_cluster(choice, lambda text: None):
        pass

    assert read_commands() == ["kind get clusters"]


NODE_IMAGE_CASES = {
    "named": ("nodes:1", True, False, "nodes:1"),
    "built": ("", True, False, node_image.name()),
    "registry": ("", True, True, ""),
    "not-built": ("", False, False, ""),
    "named-built": (node_image.name(), True, True, node_image.name()),
}


@pytest.mark.parametrize("case", NODE_IMAGE_CASES)
def test_nodes_have_the_built_image_only_without_a_registry(
    read_commands: CommandReader, tmp_path: Path, archives: None, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named image is used as it is; an image that was built here is imported first; else kind uses its own."""
    named, is_built, is_registry_there, expected = NODE_IMAGE_CASES[case]
    if is_built:
        (tmp_path / "node.tar").touch()
    with socket.create_server(("127.0.0.1", 0)) as registry:
        address = registry.getsockname()
        if not is_registry_there:
            registry.close()
        monkeypatch.setenv("REGISTRY", "https://{}:{}/v1/".format(*address))
        with kind.make_cluster(Choice(Kind.IN_CONTAINERS, node_image=named), lambda text: None):
            pass

    lines = read_commands()
    [line] = [line for line in lines if line.startswith("kind create cluster")]
    assert line.partition(" --image ")[2] == expected
    imports = [line for line in lines if line.startswith("docker import")]
    assert bool(imports) == (expected == node_image.name())
    assert all(line.endswith(f" {tmp_path / 'node.tar'} {node_image.name()}") for line in imports)


def test_named_node_image_that_is_not_built_is_refused(read_commands: CommandReader) -> None:
    """The error names the command that builds it, and no cluster is made."""
    choice = Choice(Kind.IN_CONTAINERS, node_image=node_image.name())
    with pytest.raises(MissingTool, match="make kind-node"), kind.make_cluster(choice, lambda text: None):
        pass

    assert not any("create" in line for line in read_commands())


def test_without_a_docker_engine_the_node_image_must_be_built(
    read_commands: CommandReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is started here has only what is built here: other images are refused, and nothing is started."""
    program(tmp_path / "bin", "docker", "raise SystemExit('Cannot connect to the Docker daemon')")
    monkeypatch.setattr(own_docker, "claim_with_sandbox", lambda *words: pytest.fail("the machine was claimed"))

    for choice, error, text in (
        (Choice(Kind.IN_CONTAINERS), MissingTool, "make kind-node"),
        (Choice(Kind.IN_CONTAINERS, images=IMAGES), BadChoice, "leave --image out"),
        (Choice(Kind.IN_CONTAINERS, node_image="nodes:1"), BadChoice, "leave --node-image out"),
    ):
        with pytest.raises(error, match=text):
            group_tests.run_on(choice, (), lambda text: None)


def test_image_on_kind_nodes_gets_another_name(read_commands: CommandReader) -> None:
    """`ctr` in each node gives the image the other name."""
    kind.tag_image(["one"], IMAGES.broker, "localhost/gantry:next")

    tag = f"ctr --namespace=k8s.io images tag --force {IMAGES.broker} localhost/gantry:next"
    assert read_commands() == [f"docker exec one {tag}"]


# -- the command ---------------------------------------------------------------------------------------------------


def test_help_describes_all_three_clusters() -> None:
    """It lists the requirements of each, and what happens to a test that needs more."""
    help_text = CliRunner().invoke(commands, ["groups", "--help"]).output

    for word in ("scripts/e2e --kind", "scripts/e2e --kubeconfig FILE", "three nodes in namespaces", "skipped"):
        assert word in help_text


def test_other_arguments_are_passed_to_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their order, and the chosen cluster is passed too."""
    seen: list[tuple[Choice, tuple[str, ...]]] = []

    def run_on(choice: Choice, words: tuple[str, ...], report: object) -> int:
        seen.append((choice, words))
        return 3

    monkeypatch.setattr(group_tests, "run_on", run_on)
    file = tmp_path / "kubeconfig"
    file.touch()
    ours = ["--kubeconfig", str(file), "--image", IMAGES.broker, "--operator-image", IMAGES.operator]

    result = CliRunner().invoke(commands, ["groups", "-k", "deleted and pod", *ours, "-x", "--durations=5"])

    assert result.exit_code == 3
    assert seen == [(Choice(Kind.FOREIGN, str(file), "", IMAGES), ("-k", "deleted and pod", "-x", "--durations=5"))]


def test_named_file_of_tests_is_run_alone() -> None:
    """With a test's name in it, too. Other arguments add to the files of all tests."""
    every = group_tests.default_files(("-k", "deleted", "--durations=5"))
    assert "e2e/tests/test_e2e_group_life.py" in every and len(every) > 10
    assert group_tests.default_files(("-x", "e2e/tests/test_e2e_group_life.py::test_group_is_rolled")) == []


def test_unsuitable_cluster_is_refused_before_any_test(
    read_commands: CommandReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is missing."""
    monkeypatch.setattr(ForeignCluster, "find_missing", lambda cluster: {"run_groups": "2 nodes accept pods"})

    with pytest.raises(ClusterError, match="2 nodes"):
        group_tests.run_on(CHOICE, (), lambda text: None)
