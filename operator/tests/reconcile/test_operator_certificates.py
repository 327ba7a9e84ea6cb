"""Orders over TLS: they are sent only to a sidecar that proves to know the token, with any certificate.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from admin_scene import READY_S, TOKEN, broker_process, sidecar_process, sidecars_with_long_timeouts, write_token_files
from aiohttp import web

from gantry_operator import sidecars as sidecars_module
from gantry_operator.errors import SidecarUnauthorized, SidecarUnavailable
from gantry_operator.sidecars import HttpSidecars, Peer
from gantry_spec.sidecar_proof import fingerprint_of, proof_of
from gantry_status.orders import Fence
from gantry_testing.certificates import Party
from gantry_testing.http_server import application, http_server


class TlsSidecar:
    """A sidecar that answers over TLS, with a proof made from the right or from another token."""

    def __init__(self, party: Party, token: str = TOKEN) -> None:
        self.party = party
        self.token = token
        self.shown: list[str] = []
        """The tokens that were received."""

        self.proof_of: Callable[[str], Awaitable[str]] = self._own
        self.port = 0

    async def _own(self, nonce: str) -> str:
        return proof_of(self.token, nonce, fingerprint_of(self.party.chain.read_text()))

    async def answer(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            self.shown.append(request.headers["Authorization"])
        if request.path == "/v1/proof":
            return web.json_response({"proof": await self.proof_of(request.query["nonce"])})
        return web.json_response({"role": "MASTER"})

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[Peer]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.party.chain, self.party.key)
        async with http_server(application(self.answer), port=port, tls=tls) as self.port:
            yield Peer("127.0.0.1", self.port, TOKEN, is_tls=True)


async def relayed(sidecar: TlsSidecar, nonce: str) -> str:
    """Return the answer of the real sidecar, as a man in the middle relays it."""
    url = f"https://127.0.0.1:{sidecar.port}/v1/proof?nonce={nonce}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        return str((await answer.json())["proof"])


async def test_token_is_sent_to_a_sidecar_that_proves_to_know_it(tmp_path: Path) -> None:
    """The names and the issuer of the certificate do not matter; after a replacement a new proof is requested."""
    sidecar = TlsSidecar(Party(tmp_path / "one", trustme.CA()))
    async with sidecars_with_long_timeouts() as sidecars:
        async with sidecar.listening() as peer:
            assert (await sidecars.status(peer))["role"] == "MASTER"
            await sidecars.order(peer, Fence(epoch=5))
        assert sidecar.shown == [f"Bearer {TOKEN}"] * 2, "expected no token in the request for the proof"

        sidecar.party = Party(tmp_path / "two", trustme.CA())
        async with sidecar.listening(peer.port) as peer:
            assert (await sidecars.status(peer))["role"] == "MASTER"


async def in_between(folder: Path) -> list[str]:
    """Return the tokens that a man in the middle gets, with his own certificate and the real sidecar's answers."""
    authority = trustme.CA()
    real, thief = TlsSidecar(Party(folder / "real", authority)), TlsSidecar(Party(folder / "thief", authority))
    thief.proof_of = partial(relayed, real)
    async with real.listening(), thief.listening() as peer, sidecars_with_long_timeouts() as sidecars:
        with suppress(SidecarUnauthorized):
            await sidecars.status(peer)
    return thief.shown


async def test_man_in_the_middle_gets_no_token(tmp_path: Path) -> None:
    """This holds although his certificate is of the same authority, and he relays everything."""
    assert await in_between(tmp_path) == []


async def test_without_the_proof_a_man_in_the_middle_gets_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: any answer is accepted as a proof."""
    monkeypatch.setattr(sidecars_module, "is_proven", lambda *_: True)

    assert await in_between(tmp_path) == [f"Bearer {TOKEN}"]


async def test_sidecar_of_another_group_gets_no_token(tmp_path: Path) -> None:
    """Another group's sidecar may have an address that one of this group had before."""
    other = TlsSidecar(Party(tmp_path, trustme.CA()), token="another-token-of-another-group-00")
    async with other.listening() as peer, sidecars_with_long_timeouts() as sidecars:
        with pytest.raises(SidecarUnauthorized, match="did not prove"):
            await sidecars.status(peer)
    assert other.shown == []


async def answered(sidecars: HttpSidecars, peer: Peer) -> Mapping[str, Any]:
    """Wait until the sidecar's broker is ready."""
    async with asyncio.timeout(READY_S):
        while True:
            try:
                return await sidecars.status(peer)
            except SidecarUnavailable:
                await asyncio.sleep(0.1)


@pytest.mark.verify
async def test_real_sidecar_reports_its_status_over_tls(tmp_path: Path) -> None:
    """It has the options of its pod; it cannot prove to know another token, and does not answer without TLS."""
    party = Party(tmp_path / "certificates", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    store = tmp_path / "store"
    with broker_process(store), sidecar_process(store, *tls, *write_token_files(tmp_path)) as sidecar:
        host, _, port = sidecar.address.rpartition(":")
        async with sidecars_with_long_timeouts() as sidecars:
            answer_now = await answered(sidecars, Peer(host, int(port), TOKEN, is_tls=True))
            with pytest.raises(SidecarUnauthorized):
                await sidecars.status(Peer(host, int(port), "x" * 40, is_tls=True))
            with pytest.raises(SidecarUnavailable):
                await sidecars.status(Peer(host, int(port), TOKEN))
    assert answer_now["role"] == "MASTER"
