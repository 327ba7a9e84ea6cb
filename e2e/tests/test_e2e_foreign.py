"""Clusters that are not made by us, with stand-ins for kubectl, kind and docker: what they are told, and what stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from gantry_cluster import foreign, group_tests, kind
from gantry_cluster.api import Object
from gantry_cluster.choice import Choice, Kind
from gantry_cluster.cli import commands
from gantry_cluster.cluster import Cluster
from gantry_cluster.errors import ApiRefused, ClusterError, CommandFailed
from gantry_cluster.foreign import ForeignCluster, NotOurs, opened
from gantry_cluster.groups import install_operator
from gantry_cluster.image_names import IMAGE, Images
from gantry_cluster.pods import Namespace
from gantry_cluster.spaces import Spaces

from gantry_testing.programs import write_program

IMAGES = Images("example.com/gantry:1", "example.com/gantry-operator:1")
CHOICE = Choice(Kind.FOREIGN, "/their/kubeconfig", "east", IMAGES)

SERVER = """
import http.server, json, os, socketserver, sys
ANSWERS = json.loads(os.environ["ANSWERS"])
print(*sys.argv[1:], file=open(os.environ["TOLD"], "a"))
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
        return "nobody"
    def log_message(self, *words): ...

path = next(word for word in sys.argv if word.startswith("--unix-socket=")).partition("=")[2]
socketserver.ThreadingUnixStreamServer(path, Handler).serve_forever()
"""
"""Of `kubectl proxy`."""

RECORDER = """
import os, sys
print(os.path.basename(sys.argv[0]), *sys.argv[1:], file=open(os.environ["TOLD"], "a"))
if sys.argv[1:3] == ["get", "clusters"]:
    print(os.environ.get("CLUSTERS", "No kind clusters found."))
if sys.argv[1:3] == ["get", "nodes"]:
    print("one", "two", sep="\\n")
if sys.argv[1:3] == os.environ.get("FAILS", "").split():
    sys.exit("no space left")
"""

READY: dict[str, Object] = {"/readyz": {}, "/api/v1/nodes": {"items": []}}
Told = Callable[[], list[str]]


def program(folder: Path, name: str, text: str) -> None:
    """A stand-in."""
    write_program(folder / name, text)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Stand-ins that are found instead of the real ones; what they were told."""
    folder, file = tmp_path / "bin", tmp_path / "told"
    folder.mkdir()
    file.touch()
    program(folder, "kubectl", SERVER)
    for name in ("kind", "docker", "helm"):
        program(folder, name, RECORDER)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("KUBECTL", "HELM"):
        monkeypatch.setenv(f"GANTRY_{name}", str(folder / name.lower()))
    monkeypatch.delenv(kind.PROVIDER, raising=False)
    monkeypatch.setenv("TOLD", str(file))
    monkeypatch.setenv("ANSWERS", json.dumps(READY))
    return lambda: file.read_text().splitlines()


# -- a kubeconfig --------------------------------------------------------------------------------------------------


def test_a_kubeconfig_is_used_as_its_context_says_and_not_left_lying(told: Told) -> None:
    """Whatever way to be somebody it holds; the copy is for us alone, and gone in the end."""
    with opened(CHOICE) as cluster:
        file = cluster.folder.kubeconfig
        assert (file.read_text(), file.stat().st_mode & 0o077) == ("a secret\n", 0)
        assert file.parent.stat().st_mode & 0o077 == 0
        assert cluster.api.is_ready()

    assert not file.parent.exists()
    assert told()[0] == "--kubeconfig=/their/kubeconfig config view --raw --flatten --minify --context=east"


def test_a_cluster_that_cannot_be_reached_is_told_with_the_words_of_kubectl(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, and no secret in it."""
    monkeypatch.setenv("ANSWERS", "{}")

    with pytest.raises(ClusterError, match="no route to host") as fault, opened(CHOICE):
        pass

    assert "secret" not in str(fault.value)


def test_what_cannot_be_done_to_nodes_of_others_is_refused(told: Told, tmp_path: Path) -> None:
    """Also when a test has not said what it needs."""
    with opened(CHOICE) as cluster:
        with pytest.raises(NotOurs, match="cluster_can"):
            cluster.machines["node1"]
        with pytest.raises(NotOurs):
            cluster.load_image(tmp_path / "image.tar")
        with pytest.raises(NotOurs):
            cluster.name_image(IMAGE, "gantry:next")
        assert cluster.give_operator(None) == IMAGES


@pytest.mark.parametrize("there", foreign.OURS)
def test_a_cluster_with_an_operator_is_left_alone(told: Told, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking away what these tests install would take away somebody's groups; an empty cluster is taken (the twin)."""
    with opened(CHOICE) as cluster:
        cluster.refuse_if_used()
    monkeypatch.setenv("ANSWERS", json.dumps(READY | {there: {"kind": "Something"}}))

    with opened(CHOICE) as cluster, pytest.raises(NotOurs, match="is there already"):
        cluster.refuse_if_used()


def test_a_namespace_that_was_there_is_not_ended_with_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a name that a test wants, and is somebody's; one that a test has made is ended (the twin)."""
    ended: list[str] = []
    taken = {"theirs"}

    def make(space: Namespace) -> Namespace:
        if space.name in taken:
            raise ApiRefused(409, "AlreadyExists", space.name)
        return space

    monkeypatch.setattr(Namespace, "make", make)
    monkeypatch.setattr(Cluster, "kubectl", lambda cluster, *words: ended.append(words[2]))
    monkeypatch.setattr("gantry_cluster.spaces.is_gone", lambda space: True)
    spaces = Spaces(object.__new__(Cluster))

    spaces.make("ours")
    with pytest.raises(ApiRefused):
        spaces.make("theirs")
    spaces.end()

    assert ended == ["ours"]


def test_the_chart_is_told_the_images_as_words(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag may look like a number, and the chart takes none."""
    monkeypatch.setenv("ANSWERS", json.dumps(READY | {foreign.OURS[0]: {"kind": "Namespace"}}))

    with opened(CHOICE) as cluster:
        install_operator(cluster, None)

    [line] = [line for line in told() if line.startswith("helm ")]
    for value in IMAGES.chart_values():
        assert f" --set-string {value}" in line


# -- kind ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are built."""
    monkeypatch.setattr("gantry_cluster.our_images.OurImage.fresh", lambda image: tmp_path / image.archive)


def test_kind_makes_a_cluster_gives_it_our_images_and_deletes_it(told: Told, tmp_path: Path, archives: None) -> None:
    """On every node, by names that are versions."""
    with kind.made(Choice(Kind.IN_CONTAINERS), lambda text: None) as made:
        assert made.images == Images("localhost/gantry:e2e", "localhost/gantry-operator:e2e", policy="Never")
        assert not any("delete" in line for line in told())

    lines = told()
    assert lines[1].startswith(f"kind create cluster --name gantry-e2e --config {kind.CONFIG} --kubeconfig ")
    assert f"kind load image-archive {tmp_path}/gantry.tar --name gantry-e2e" in lines
    assert f"kind load image-archive {tmp_path}/gantry-operator.tar --name gantry-e2e" in lines
    tag = "ctr --namespace=k8s.io images tag --force localhost/gantry:latest localhost/gantry:e2e"
    assert [line for line in lines if tag in line] == [f"docker exec {node} {tag}" for node in ("one", "two")]
    assert lines[-1].startswith("kind delete cluster --name gantry-e2e")


def test_kind_is_given_images_that_docker_has(told: Told) -> None:
    """Where they are named, nothing is built."""
    with kind.made(Choice(Kind.IN_CONTAINERS, images=IMAGES), lambda text: None) as made:
        assert made.images == IMAGES

    assert f"kind load docker-image {IMAGES.broker} {IMAGES.operator} --name gantry-e2e" in told()


@pytest.mark.parametrize("fails", ["create cluster", "load image-archive"])
def test_half_a_cluster_is_deleted_too(told: Told, archives: None, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails on the way."""
    monkeypatch.setenv("FAILS", fails)

    with pytest.raises(CommandFailed, match="no space"), kind.made(Choice(Kind.IN_CONTAINERS), lambda text: None):
        pass

    assert told()[-1].startswith("kind delete cluster --name gantry-e2e")


def test_a_cluster_of_that_name_is_left_alone(told: Told, archives: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is somebody's: refused, and not deleted."""
    monkeypatch.setenv("CLUSTERS", "other\ngantry-e2e")

    with pytest.raises(ClusterError, match="there already"), kind.made(Choice(Kind.IN_CONTAINERS), lambda text: None):
        pass

    assert told() == ["kind get clusters"]


def test_nodes_of_kind_get_a_new_name_for_an_image(told: Told) -> None:
    """As a new version of it; what tests call our image is what the cluster calls it."""
    kind.name_image(["one"], IMAGES.broker, "localhost/gantry:next")

    tag = f"ctr --namespace=k8s.io images tag --force {IMAGES.broker} localhost/gantry:next"
    assert told() == [f"docker exec one {tag}"]


# -- the command ---------------------------------------------------------------------------------------------------


def test_its_help_teaches_all_three() -> None:
    """With what each needs, and what happens to a test that needs more."""
    said = CliRunner().invoke(commands, ["groups", "--help"]).output

    for word in ("scripts/e2e --kind", "scripts/e2e --kubeconfig FILE", "three nodes in namespaces", "skipped"):
        assert word in said


def test_what_is_not_an_option_of_ours_goes_to_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, with the cluster that was chosen."""
    seen: list[tuple[Choice, tuple[str, ...]]] = []

    def run_on(choice: Choice, words: tuple[str, ...], say: object) -> int:
        seen.append((choice, words))
        return 3

    monkeypatch.setattr(group_tests, "run_on", run_on)
    file = tmp_path / "kubeconfig"
    file.touch()
    ours = ["--kubeconfig", str(file), "--image", IMAGES.broker, "--operator-image", IMAGES.operator]

    result = CliRunner().invoke(commands, ["groups", "-k", "deleted and pod", *ours, "-x", "--durations=5"])

    assert result.exit_code == 3
    assert seen == [(Choice(Kind.FOREIGN, str(file), "", IMAGES), ("-k", "deleted and pod", "-x", "--durations=5"))]


def test_a_cluster_that_cannot_carry_groups_is_refused_before_any_test(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is missing there."""
    monkeypatch.setattr(ForeignCluster, "lacks", lambda cluster: {"run_groups": "2 nodes take pods"})

    with pytest.raises(ClusterError, match="2 nodes"):
        group_tests.run_on(CHOICE, (), lambda text: None)
