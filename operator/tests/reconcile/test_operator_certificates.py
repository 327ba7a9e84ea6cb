"""Orders over TLS: to whoever proves that he knows the token, whatever his certificate says, and to nobody else."""

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
from admin_scene import READY_S, TOKEN, broker_beside, patient_sidecars, sidecar_beside, token_files
from aiohttp import web

from gantry_operator import sidecars as sidecars_module
from gantry_operator.errors import SidecarDenied, SidecarSilent
from gantry_operator.sidecars import HttpSidecars, Peer
from gantry_spec.sidecar_proof import fingerprint_of, proof_of
from gantry_status.orders import Fence
from gantry_testing.certificates import Party
from gantry_testing.http_server import application, http_server


class TlsSidecar:
    """One that answers over TLS, and knows the token that it proves its certificate with, or another one."""

    def __init__(self, party: Party, token: str = TOKEN) -> None:
        self.party = party
        self.token = token
        self.shown: list[str] = []
        """Tokens that came."""

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
    """What the real one answers to somebody in between."""
    url = f"https://127.0.0.1:{sidecar.port}/v1/proof?nonce={nonce}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        return str((await answer.json())["proof"])


async def test_the_token_goes_over_tls_to_whoever_knows_it(tmp_path: Path) -> None:
    """Whatever names stand in the certificate, and whoever signed it; a replaced one is asked for its proof again."""
    sidecar = TlsSidecar(Party(tmp_path / "one", trustme.CA()))
    async with patient_sidecars() as sidecars:
        async with sidecar.listening() as peer:
            assert (await sidecars.status(peer))["role"] == "MASTER"
            await sidecars.order(peer, Fence(epoch=5))
        assert sidecar.shown == [f"Bearer {TOKEN}"] * 2, "and not with the question for the proof"

        sidecar.party = Party(tmp_path / "two", trustme.CA())
        async with sidecar.listening(peer.port) as peer:
            assert (await sidecars.status(peer))["role"] == "MASTER"


async def in_between(folder: Path) -> list[str]:
    """Tokens that somebody has got who stands between, with a certificate of his own and the real one's answers."""
    authority = trustme.CA()
    real, thief = TlsSidecar(Party(folder / "real", authority)), TlsSidecar(Party(folder / "thief", authority))
    thief.proof_of = partial(relayed, real)
    async with real.listening(), thief.listening() as peer, patient_sidecars() as sidecars:
        with suppress(SidecarDenied):
            await sidecars.status(peer)
    return thief.shown


async def test_somebody_in_between_gets_no_token(tmp_path: Path) -> None:
    """Though his certificate is of the same authority, and he passes everything on."""
    assert await in_between(tmp_path) == []


async def test_without_the_proof_somebody_in_between_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: any answer will do."""
    monkeypatch.setattr(sidecars_module, "is_proven", lambda *_: True)

    assert await in_between(tmp_path) == [f"Bearer {TOKEN}"]


async def test_who_does_not_know_the_token_is_not_told_it(tmp_path: Path) -> None:
    """Another group's sidecar at an address that was ours."""
    other = TlsSidecar(Party(tmp_path, trustme.CA()), token="another-token-of-another-group-00")
    async with other.listening() as peer, patient_sidecars() as sidecars:
        with pytest.raises(SidecarDenied, match="does not prove"):
            await sidecars.status(peer)
    assert other.shown == []


async def answered(sidecars: HttpSidecars, peer: Peer) -> Mapping[str, Any]:
    """When its broker is there."""
    async with asyncio.timeout(READY_S):
        while True:
            try:
                return await sidecars.status(peer)
            except SidecarSilent:
                await asyncio.sleep(0.1)


@pytest.mark.verify
async def test_a_real_sidecar_is_ordered_over_tls(tmp_path: Path) -> None:
    """With the options that its pod has; the same without a certificate proves nothing."""
    party = Party(tmp_path / "certificates", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    store = tmp_path / "store"
    with broker_beside(store), sidecar_beside(store, *tls, *token_files(tmp_path)) as sidecar:
        host, _, port = sidecar.address.rpartition(":")
        async with patient_sidecars() as sidecars:
            said = await answered(sidecars, Peer(host, int(port), TOKEN, is_tls=True))
            with pytest.raises(SidecarDenied):
                await sidecars.status(Peer(host, int(port), "x" * 40, is_tls=True))
            with pytest.raises(SidecarSilent):
                await sidecars.status(Peer(host, int(port), TOKEN))
    assert said["role"] == "MASTER"
