"""`gantry pod ask` beside a real sidecar: it answers whoever may run something in the pod, and shows nobody a token."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from admin_scene import READ_TOKEN, SidecarChild, broker_beside, sidecar_beside, token_files, wait_for

from gantry_cli.pod.asking import asked
from gantry_testing.certificates import Party

pytestmark = pytest.mark.verify


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SidecarChild, Path]]:
    """One that wants tokens, as in a pod, and the folder that they are mounted in."""
    folder = tmp_path_factory.mktemp("pod")
    with (
        broker_beside(folder / "store") as broker,
        sidecar_beside(folder / "store", *token_files(folder / "tokens")) as made,
    ):
        broker.send(3)
        made.wait_ready()
        wait_for(
            lambda: made.get("/v1/status", token=READ_TOKEN).json()["wrote"] == broker.end, "all of it is published"
        )
        yield made, folder / "tokens/read-tokens"


def ask(url: str, tokens: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """As kubelet would run it."""
    command = [sys.executable, "-m", "gantry_cli", "pod", "ask", "--url", url, "--token-file", str(tokens), *words]
    return subprocess.run(command, capture_output=True, timeout=180, check=False)


def test_every_question_is_answered_in_one_object(sidecar: tuple[SidecarChild, Path]) -> None:
    """By path, with its status: also what is not there."""
    child, tokens = sidecar

    done = ask(child.url, tokens, "/v1/status", "/v1/role/now", "/v1/nothing")

    said = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert said["/v1/status"]["said"]["wrote"] == said["/v1/role/now"]["said"]["wrote"] > 0
    assert said["/v1/nothing"]["status"] == 404 and "said" not in said["/v1/nothing"]
    assert READ_TOKEN.encode() not in done.stdout + done.stderr


def test_a_bundle_comes_as_it_is(sidecar: tuple[SidecarChild, Path]) -> None:
    """Byte for byte, so that it can go into another one."""
    child, tokens = sidecar

    done = ask(child.url, tokens, "--raw", "/v1/bundle")

    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert "gantry-bundle/status.json" in archive.getnames()


def test_without_a_token_nothing_is_answered(sidecar: tuple[SidecarChild, Path], tmp_path: Path) -> None:
    """The twin: the same question of somebody who has no file with tokens is refused, and says why."""
    child, _ = sidecar

    together = json.loads(ask(child.url, tmp_path / "none", "/v1/status").stdout)
    raw = ask(child.url, tmp_path / "none", "--raw", "/v1/bundle")

    assert together["/v1/status"]["status"] == 401 and "token" in together["/v1/status"]["reason"]
    assert raw.returncode == 1 and b"(401)" in raw.stderr and raw.stdout == b""


def test_orders_and_other_machines_are_not_asked(sidecar: tuple[SidecarChild, Path]) -> None:
    """An order has no GET; a token is shown to this pod's own loopback, whatever somebody types."""
    child, tokens = sidecar

    order = json.loads(ask(child.url, tokens, "/v1/role/fence").stdout)
    elsewhere = ask("http://192.0.2.1:8080", tokens, "/v1/status")

    assert order["/v1/role/fence"]["status"] == 405
    assert elsewhere.returncode == 2 and b"is no sidecar of this pod" in elsewhere.stderr


def test_a_sidecar_with_certificates_is_asked_over_tls(tmp_path: Path) -> None:
    """The same question without being told: plain text is hung up on. Without a sidecar there is no answer."""
    party = Party(tmp_path / "own", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    tokens = token_files(tmp_path / "tokens")
    with broker_beside(tmp_path / "store"), sidecar_beside(tmp_path / "store", *tokens, *tls) as child:
        answer = asked(f"http://{child.address}", "/v1/status", tmp_path / "tokens/read-tokens")

    assert (answer.status, json.loads(answer.body)["motion"]["state"]) == (200, "moving")
    gone = asked(f"http://{child.address}", "/v1/status", tmp_path / "tokens/read-tokens")
    assert gone.status == 0 and "the sidecar does not answer" in gone.reason
