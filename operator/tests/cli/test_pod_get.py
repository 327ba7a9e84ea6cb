"""`gantry pod get` beside a real sidecar: it needs the right to run programs in the pod, and reveals no token.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import hashlib
import io
import json
import ssl
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from admin_scene import READ_TOKEN, TOKEN, SidecarChild, broker_process, sidecar_process, wait_for, write_token_files
from click.testing import CliRunner

from gantry_cli.main import cli
from gantry_cli.pod.sidecar_query import query_sidecar
from gantry_testing.certificates import Party

pytestmark = pytest.mark.verify

END = "-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SidecarChild, Path]]:
    """A sidecar that requires tokens, as in a pod, and the folder where they are mounted."""
    folder = tmp_path_factory.mktemp("pod")
    with (
        broker_process(folder / "store") as broker,
        sidecar_process(folder / "store", *write_token_files(folder / "tokens")) as made,
    ):
        broker.send(3)
        made.wait_ready()
        wait_for(
            lambda: made.get("/v1/status", token=READ_TOKEN).json()["wrote"] == broker.log_end, "all of it is published"
        )
        yield made, folder / "tokens/read-tokens"


def get(url: str, tokens: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run `gantry pod get` as kubelet would."""
    command = [sys.executable, "-m", "gantry_cli", "pod", "get", "--url", url, "--token-file", str(tokens), *words]
    return subprocess.run(command, capture_output=True, timeout=180, check=False)


def test_answers_to_all_paths_are_one_object(sidecar: tuple[SidecarChild, Path]) -> None:
    """The object has each path with its status, also of a missing document."""
    child, tokens = sidecar

    done = get(child.url, tokens, "/v1/status", "/v1/role/now", "/v1/nothing")

    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert document["/v1/status"]["body"]["wrote"] == document["/v1/role/now"]["body"]["wrote"] > 0
    assert document["/v1/nothing"]["status"] == 404 and "body" not in document["/v1/nothing"]
    assert READ_TOKEN.encode() not in done.stdout + done.stderr


@pytest.mark.parametrize("may_change", [False, True], ids=["read", "change"])
def test_console_code_has_the_permissions_of_the_mounted_token(tmp_path: Path, may_change: bool) -> None:
    """The code opens one session with the token's permissions; the digest is that of the sidecar's certificate."""
    party = Party(tmp_path / "own", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    name = "tokens" if may_change else "read-tokens"
    with sidecar_process(tmp_path / "store", *write_token_files(tmp_path / "tokens"), *tls) as child:
        options = ["--url", f"http://{child.address}", "--token-file", str(tmp_path / "tokens" / name)]
        made = CliRunner().invoke(cli, ["pod", "console-code", *options])
        refused = CliRunner().invoke(cli, ["pod", "console-code", *options[:2], "--token-file", str(tmp_path / "none")])
        document = json.loads(made.stdout)
        url = f"https://{child.address}"
        with httpx.Client(base_url=url, verify=ssl_context_of(party), timeout=60) as client:
            session = client.post("/v1/console/sessions", json={"code": document["code"]}).json()["session"]
            flush = client.post("/v1/role/flush", headers={"Authorization": f"Bearer {session}"})

    presented = ssl.PEM_cert_to_DER_cert(party.chain.read_text().partition("-----END CERTIFICATE-----")[0] + END)
    assert document["certificate_sha256"] == hashlib.sha256(presented).hexdigest()
    assert (flush.status_code == 403) is not may_change, flush.text
    assert (refused.exit_code, "made no code" in refused.stderr) == (1, True)
    assert READ_TOKEN not in made.output and TOKEN not in made.output


def ssl_context_of(party: Party) -> ssl.SSLContext:
    """Return the context of a client that trusts the authority of a sidecar."""
    return ssl.create_default_context(cafile=str(party.authority))


def test_former_name_of_the_command_is_hidden(sidecar: tuple[SidecarChild, Path]) -> None:
    """A `kubectl gantry` of an earlier version runs `gantry pod ask` in the pod."""
    child, tokens = sidecar
    options = ["--url", child.url, "--token-file", str(tokens)]

    former = CliRunner().invoke(cli, ["pod", "ask", *options, "/v1/role/now"])

    answer = json.loads(former.stdout)["/v1/role/now"]
    assert former.exit_code == 0 and answer["status"] == 200 and answer["said"]["role"] == "MASTER"
    assert " ask " not in CliRunner().invoke(cli, ["pod", "--help"]).stdout


def test_raw_bundle_is_a_readable_archive(sidecar: tuple[SidecarChild, Path]) -> None:
    """Its bytes are not decoded as text, so that it can be packed into another bundle."""
    child, tokens = sidecar

    done = get(child.url, tokens, "--raw", "/v1/bundle")

    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert "gantry-bundle/status.json" in archive.getnames()


def test_request_without_a_token_is_refused(sidecar: tuple[SidecarChild, Path], tmp_path: Path) -> None:
    """The twin: without a token file the same request is refused with the reason."""
    child, _ = sidecar

    together = json.loads(get(child.url, tmp_path / "none", "/v1/status").stdout)
    raw = get(child.url, tmp_path / "none", "--raw", "/v1/bundle")

    assert together["/v1/status"]["status"] == 401 and "token" in together["/v1/status"]["reason"]
    assert raw.returncode == 1 and b"(401)" in raw.stderr and raw.stdout == b""


def test_only_get_requests_to_loopback_are_sent(sidecar: tuple[SidecarChild, Path]) -> None:
    """Orders have no GET, and the token is sent only to the pod's own loopback addresses."""
    child, tokens = sidecar

    order = json.loads(get(child.url, tokens, "/v1/role/fence").stdout)
    refusal = get("http://192.0.2.1:8080", tokens, "/v1/status")

    assert order["/v1/role/fence"]["status"] == 405
    assert refusal.returncode == 2 and b"is not a sidecar of this pod" in refusal.stderr
    no_port = get("http://127.0.0.1:99999", tokens, "/v1/status")
    assert no_port.returncode == 2 and b"has no valid port" in no_port.stderr


def test_sidecar_with_certificates_is_asked_over_tls(tmp_path: Path) -> None:
    """Without an option: a plain-text connection is closed and TLS is tried. Without a sidecar there is no answer."""
    party = Party(tmp_path / "own", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    tokens = write_token_files(tmp_path / "tokens")
    with broker_process(tmp_path / "store"), sidecar_process(tmp_path / "store", *tokens, *tls) as child:
        answer = query_sidecar(f"http://{child.address}", "/v1/status", tmp_path / "tokens/read-tokens")

    assert (answer.status, json.loads(answer.body)["loop_state"]["state"]) == (200, "running")
    gone = query_sidecar(f"http://{child.address}", "/v1/status", tmp_path / "tokens/read-tokens")
    assert gone.status == 0 and "the sidecar does not answer" in gone.reason
