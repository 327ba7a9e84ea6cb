"""Rows S8 and S9 of the fault catalogue: unauthorized access to the sidecar, and where secrets must not appear.

A twin is the same test with the permission, or with a text that is no secret: it must succeed, or find the text.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from admin_scene import (
    READ_TOKEN,
    TOKEN,
    BrokerChild,
    SidecarChild,
    app_of,
    broker_process,
    bundle_entries,
    endpoints,
    sidecar_process,
    wait_for,
    write_token_files,
)

from gantry_admin.__main__ import main, parser, settings_of

ORDERS = ("promise", "promote", "demote", "fence", "drain", "flush")
"""The orders about roles that the sidecar passes on to its broker."""
BODY = {"epoch": 9}
OPEN_ENDPOINTS = {
    ("GET", "/"), ("GET", "/console/"), ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/startupz"),
    ("GET", "/v1/proof"), ("POST", "/v1/console/sessions"),
}  # fmt: skip
"""The endpoints that need no token: probes, the console's files, the exchange of a console code, and the proof that the
sidecar's certificate is its own."""
VALUES = {"topic": "TopicTest", "queue_id": 0, "group": "GroupTest", "offset": 0, "job_id": "0" * 16}
"""The values of the parameters in paths."""
READING = {"/v1/console/codes", "/v1/resend-preview"}
"""The endpoints with POST that change nothing: a code has the rights of its token, and a preview reads messages."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    """Return a sidecar that other machines may reach, with tokens."""
    store = tmp_path_factory.mktemp("store")
    tokens = write_token_files(tmp_path_factory.mktemp("tokens"))
    with broker_process(store) as broker:
        broker.send(5)
        options = ["--listen", "0.0.0.0:0", "--log-listen", "0.0.0.0:0", *tokens]
        with sidecar_process(store, *options) as sidecar:
            sidecar.url = sidecar.url.replace("0.0.0.0", "127.0.0.1")
            sidecar.log_address = sidecar.log_address.replace("0.0.0.0", "127.0.0.1")
            wait_for(lambda: sidecar.get("/v1/role", token=TOKEN).status_code == 200, "the broker has answered")
            yield broker, sidecar


def guarded_endpoints(folder: Path) -> list[tuple[str, str]]:
    """Return method and path of each endpoint of the sidecar that needs a token, without the orders."""
    orders = {("POST", f"/v1/role/{order}") for order in ORDERS}
    found = endpoints(app_of(folder).routes)
    assert OPEN_ENDPOINTS | orders < found, "an endpoint was removed"
    return sorted((method, path.format(**VALUES)) for method, path in found - OPEN_ENDPOINTS - orders)


def ask(sidecar: SidecarChild, method: str, path: str, token: str | None) -> httpx.Response:
    """Send a request, with an empty document if it is a POST."""
    return sidecar.get(path, token=token) if method == "GET" else sidecar.post(path, {}, token=token)


@pytest.mark.parametrize("token", [None, "wrong-token-0123456789", "-"], ids=["none", "wrong", "short"])
def test_request_without_a_valid_token_learns_nothing(
    pair: tuple[BrokerChild, SidecarChild], tmp_path: Path, token: str | None
) -> None:
    """S8: 401 at every endpoint, for no token, a wrong one and a short one; also at the fast port."""
    _, sidecar = pair

    answers = {one: ask(sidecar, *one, token) for one in guarded_endpoints(tmp_path)}

    assert {one: answer.status_code for one, answer in answers.items()} == dict.fromkeys(answers, 401)
    assert all(answer.headers["www-authenticate"].startswith("Bearer") for answer in answers.values())
    assert {("GET", "/v1/messages"), ("POST", "/v1/dead-letters/GroupTest/0/0/resend")} <= answers.keys()
    assert sidecar.get("/v1/log/bytes", token=token, at_log_port=True, Range="bytes=0-9").status_code == 401


def test_read_token_changes_nothing(pair: tuple[BrokerChild, SidecarChild], tmp_path: Path) -> None:
    """S8: 403 at every endpoint that changes something, for the token that may only read."""
    _, sidecar = pair
    changing = [path for method, path in guarded_endpoints(tmp_path) if method != "GET" and path not in READING]

    assert {path: sidecar.post(path, {}, token=READ_TOKEN).status_code for path in changing} == dict.fromkeys(
        changing, 403
    )
    assert len(changing) >= 2


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz"])
def test_probes_need_no_token(pair: tuple[BrokerChild, SidecarChild], path: str) -> None:
    """S8: kubelet has no token, and its probes succeed."""
    _, sidecar = pair

    wait_for(lambda: sidecar.get(path).status_code == 200, "a broker that a busy machine has slowed down is ready")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("token", "status"), [(None, 401), ("x" * 30, 401), (READ_TOKEN, 403)])
def test_orders_are_refused_without_permission(
    pair: tuple[BrokerChild, SidecarChild], order: str, token: str | None, status: int
) -> None:
    """S8: errors in the body are not reported either; the broker's role is unchanged; one audit line each."""
    _, sidecar = pair
    before = sidecar.child.log.count(f'"what":"{order}"')

    bodies: tuple[object, ...] = (BODY, {}, [], "nonsense")
    for body in bodies:
        assert sidecar.post(f"/v1/role/{order}", body, token=token).status_code == status

    wait_for(lambda: sidecar.child.log.count(f'"what":"{order}"') == before + 4, "four audit lines")
    assert sidecar.get("/v1/role", token=TOKEN).json()["promised_epoch"] == 0


@pytest.mark.verify
def test_valid_token_is_accepted(tmp_path: Path) -> None:
    """S8's twin: with the token that may change the same request succeeds, so the refusals above are the guard's."""
    with (
        broker_process(tmp_path / "store"),
        sidecar_process(tmp_path / "store", *write_token_files(tmp_path / "t")) as sidecar,
    ):
        wait_for(lambda: sidecar.get("/readyz").status_code == 200, "it is ready")
        assert sidecar.post("/v1/role/fence", BODY, token=TOKEN).status_code == 200
        wait_for(
            lambda: sidecar.get("/v1/role", token=READ_TOKEN).json()["promised_epoch"] == 9, "the epoch is reported"
        )


@pytest.mark.parametrize("option", ["--listen", "--log-listen"])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_nothing_listens_beyond_loopback_without_credentials(
    capsys: pytest.CaptureFixture[str], option: str, address: str
) -> None:
    """S8: the sidecar refuses to start, and names the missing option."""
    code = main(["--page", "p", "--control", "c", "--store", "s", option, address])

    assert code == 2
    assert "--token-file" in capsys.readouterr().err


def test_the_default_is_loopback() -> None:
    """S8: without any option both ports are this machine's own."""
    settings = settings_of(parser().parse_args(["--page", "p", "--control", "c", "--store", "s"]))

    assert settings.listen.is_loopback
    assert settings.log_listen.is_loopback


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_no_other_origin_is_allowed(pair: tuple[BrokerChild, SidecarChild], origin: str) -> None:
    """S8: neither a plain request nor a preflight gets a header that lets a page of another origin read the answer."""
    _, sidecar = pair
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }

    plain = sidecar.get("/v1/status", token=TOKEN, Origin=origin)
    preflight = httpx.options(f"{sidecar.url}/v1/role/fence", headers=headers)

    for answer in (plain, preflight):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert preflight.status_code == 405


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"])
def test_the_interface_is_not_described_in_production(pair: tuple[BrokerChild, SidecarChild], path: str) -> None:
    """S8: the API description is off by default, for all clients."""
    _, sidecar = pair

    assert sidecar.get(path, token=TOKEN).status_code == 404


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with-length", "chunked"])
def test_a_huge_body_is_refused_while_it_comes_in(pair: tuple[BrokerChild, SidecarChild], is_chunked: bool) -> None:
    """S8: 413 without waiting for its end, and the memory of the process does not grow."""
    _, sidecar = pair

    def pieces() -> Iterator[bytes]:
        for _ in range(300):
            yield b" " * 65_536

    before = resident_bytes(sidecar.child.process.pid)
    content: object = pieces() if is_chunked else b" " * (20 << 20)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    try:
        answer = httpx.post(f"{sidecar.url}/v1/role/fence", content=content, headers=headers, timeout=90)  # type: ignore[arg-type]
        assert answer.status_code == 413
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # it was closed while we still sent

    assert resident_bytes(sidecar.child.process.pid) - before < 8 << 20
    assert sidecar.get("/livez").status_code == 200


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "path",
    [
        "/v1/log/queues/../../config/0", "/v1/log/queues/..%2f..%2fconfig/0", "/v1/log/queues/%2e%2e/0",
        "/v1/log/queues/TopicTest/-1", "/v1/log/queues/TopicTest/..", "/v1/log/queues/TopicTest/0%00",
        "/v1/log/queues/" + "a" * 300 + "/0", "/v1/log/queues/%E2%80%A4%E2%80%A4/0", "/v1/log/queues/con.txt/0",
        "/console/../../../../etc/passwd", "/console/..%2f..%2f..%2fetc%2fpasswd", "//etc/passwd",
        "/v1/log/queues/%25RETRY%25..%2fx/0", "/v1/log/queues/a%00b/0/units?from=0",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_store(pair: tuple[BrokerChild, SidecarChild], path: str) -> None:
    """S8: 400, 404, 422 or a redirect for raw paths, which no client normalizes before."""
    _, sidecar = pair
    host, _, port = sidecar.url.removeprefix("http://").rpartition(":")
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=90) as connection:
        connection.sendall(request.encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece

    assert answer.split()[1] in (b"404", b"422", b"400", b"307")
    assert b"root:" not in answer


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("field", ["peer", "url", "target", "host"])
def test_requests_cannot_choose_the_peers_of_the_sidecar(pair: tuple[BrokerChild, SidecarChild], field: str) -> None:
    """S8: peers come from the command line; a field that names another is refused or ignored."""
    _, sidecar = pair
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(1.0)
        address = f"127.0.0.1:{trap.getsockname()[1]}"
        sidecar.get(f"/v1/group?{field}=http://{address}", token=TOKEN, X_Forwarded_Host=address, Forwarded=address)
        refused = sidecar.post("/v1/role/fence", {"epoch": 9, field: address}, token=TOKEN)
        with pytest.raises(TimeoutError):
            trap.accept()

    assert refused.status_code == 422


def test_forwarded_address_does_not_make_a_client_local(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """S8: headers of a proxy do not change the identity of a client."""
    _, sidecar = pair
    own = "127.0.0.1"

    assert sidecar.get("/v1/status", X_Forwarded_For=own, X_Real_IP=own, Forwarded=own).status_code == 401


@pytest.mark.verify
def test_own_client_certificate_is_accepted_and_a_foreign_one_refused(tmp_path: Path) -> None:
    """S8: with mTLS the configured authority's certificates may give orders; another authority's are refused by TLS."""
    ours, theirs = trustme.CA(), trustme.CA()
    server = ours.issue_cert("127.0.0.1")
    files = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem", "ca": tmp_path / "ca.pem"}
    server.private_key_pem.write_to_path(str(files["key"]))
    for blob in server.cert_chain_pems:
        blob.write_to_path(str(files["cert"]), append=True)
    ours.cert_pem.write_to_path(str(files["ca"]))
    options = ["--tls-cert", str(files["cert"]), "--tls-key", str(files["key"]), "--tls-client-ca", str(files["ca"])]

    def context(authority: trustme.CA | None) -> ssl.SSLContext:
        made = ssl.create_default_context()
        ours.configure_trust(made)
        if authority is not None:
            authority.issue_cert("alice@example.org", common_name="alice").configure_cert(made)
        return made

    with broker_process(tmp_path / "store") as broker, sidecar_process(tmp_path / "store", *options) as sidecar:
        broker.send(3)
        main_url, fast_url = f"https://{sidecar.address}", f"https://{sidecar.log_address}/v1/log/bytes"
        with httpx.Client(verify=context(ours), timeout=90) as client:
            wait_for(lambda: client.get(f"{main_url}/readyz").status_code == 200, "it is ready")
            assert client.get(f"{main_url}/v1/status").status_code == 200
            head = {"Range": "bytes=0-99"}
            wait_for(lambda: client.get(fast_url, headers=head).status_code == 206, "what was sent is published")
            assert client.post(f"{main_url}/v1/role/flush").status_code == 200
        with httpx.Client(verify=context(None), timeout=90) as client:
            assert client.get(f"{main_url}/livez").status_code == 200
            assert client.get(f"{main_url}/v1/status").status_code == 401
            assert client.get(fast_url, headers=head).status_code == 401
        with httpx.Client(verify=context(theirs), timeout=90) as client, pytest.raises(httpx.TransportError):
            client.get(f"{main_url}/livez")

    assert '"account":"certificate:alice"' in sidecar.child.log


def test_no_secret_is_shown_anywhere(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """S9: tokens, right or wrong, are in no log line, metric, status, error or bundle."""
    _, sidecar = pair
    wrong = "a-wrong-token-with-a-typing-error"
    errors = (
        sidecar.get("/v1/status", token=wrong).text,
        sidecar.post("/v1/role/fence", {"epoch": TOKEN}, token=TOKEN).text,
    )
    texts = [*errors, *shown_texts(sidecar)]

    for secret in (TOKEN, READ_TOKEN, wrong):
        assert not [text for text in texts if secret in text]


def shown_texts(sidecar: SidecarChild) -> Iterator[str]:
    """Yield the documents of the sidecar, each file of its bundle, and its log."""
    for path in ("/v1/status", "/v1/group", "/metrics", "/v1/role", "/livez"):
        yield sidecar.get(path, token=TOKEN).text
    for entry in bundle_entries(sidecar.get("/v1/bundle", token=TOKEN).content).values():
        yield entry.decode("latin-1")
    yield sidecar.child.log


def test_settings_do_not_show_where_secrets_lie(tmp_path: Path) -> None:
    """S9: the repr of the settings names no file of secrets, so a traceback or a log line cannot either."""
    options = ["--page", "p", "--control", "c", "--store", "s", *write_token_files(tmp_path)]
    settings = settings_of(parser().parse_args([*options, "--broker-credentials", "/secret/place"]))

    assert "/secret/place" not in repr(settings)
    assert str(tmp_path) not in repr(settings)


def test_secret_scan_finds_existing_text(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """S9's twin: the same search finds texts that are not secret, one of them only in a file of the bundle."""
    _, sidecar = pair
    sidecar.post("/v1/role/flush", {}, token=TOKEN)
    wait_for(lambda: "gantry.audit" in sidecar.child.log, "the order is in the log")

    texts = list(shown_texts(sidecar))

    for shown in ("test-broker", "gantry.audit", '"listenPort":'):
        assert [text for text in texts if shown in text], shown
