"""The gRPC proxies on the page of the console, in a real browser: those that take clients, and those that do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from admin_scene import sidecar_process
from console_browser import browser, page_at
from playwright.sync_api import expect

pytestmark = pytest.mark.needs_browser

METRICS = """\
gantry_proxy_ready {ready}
gantry_proxy_clients 12
gantry_proxy_telemetry_streams 11
gantry_proxy_calls_running 34
gantry_proxy_calls_refused_total 0
gantry_proxy_messages_in_flight 56
gantry_proxy_calls_total{{method="SendMessage",code="OK"}} 789
"""


@contextmanager
def http_port(reason: str) -> Iterator[str]:
    """Serve metrics and readiness of a proxy during the context; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        """Answers as a proxy that is ready, or not for this reason."""

        def do_GET(self) -> None:
            body = METRICS.format(ready=int(not reason)) if self.path == "/metrics" else reason
            self.send_response(503 if self.path == "/readyz" and reason else 200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Keep the output of tests clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="fake-proxy")
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.verify
def test_each_proxy_is_shown_with_its_state_and_figures(tmp_path: Path) -> None:
    """The table has a row for each; one that is not ready, or does not answer, is a problem of the group."""
    with http_port("") as gone:
        pass
    with http_port("") as ready, http_port("the proxy is stopping") as stopping:
        pass_on = [word for address in (ready, stopping, gone) for word in ("--proxy", f"http://{address}")]
        with (
            sidecar_process(tmp_path, "--open-reads", *pass_on) as sidecar,
            browser() as chromium,
            page_at(chromium, f"{sidecar.url}/console/") as page,
        ):
            rows = page.locator("[data-proxy]")
            expect(rows).to_have_count(3)
            expect(page.locator(f'[data-proxy="{ready}"]')).to_have_attribute("data-state", "ready")
            expect(page.locator(f'[data-proxy="{ready}"] .number')).to_have_text(["12", "11", "0/s", "34", "0", "56"])
            expect(page.locator(f'[data-proxy="{stopping}"]')).to_have_attribute("data-state", "not ready")
            expect(page.get_by_label("Problems")).to_contain_text(f"gRPC proxy {stopping}: not ready")
            expect(page.get_by_label("Problems")).to_contain_text("the proxy is stopping")
            expect(page.get_by_label("Problems")).to_contain_text(f"gRPC proxy {gone}: unreachable")


def test_group_without_proxies_has_no_panel_of_them(tmp_path: Path) -> None:
    """The twin: without the option there is no table, and no problem."""
    with (
        sidecar_process(tmp_path, "--open-reads") as sidecar,
        browser() as chromium,
        page_at(chromium, f"{sidecar.url}/console/") as page,
    ):
        expect(page.get_by_role("heading", name="The last five minutes")).to_be_visible()
        expect(page.locator("[data-proxy]")).to_have_count(0)
