"""Runs a pod of a group as processes of this machine, from its rendered objects.

    the pod's template     the arguments and variables of `gantry pod broker` and `gantry pod sidecar`
    the ConfigMap          files in a folder, replaced as kubelet does
    paths and ports        those of the pod, mapped to a temporary folder and to free ports of loopback

An edit has the same effect as in a cluster: if the hash of the template changes, the pod is recreated, and its volume
is kept; if not, only the mounted files change. There is no API server, so the sidecar renews no Lease.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import httpx
from admin_scene import wait_for
from edit_world.own_secrets import Secrets, certificates
from edit_world.pod_mapping import PodMapping
from edit_world.row import GROUP, has_tls
from objects_scene import broker_sets, containers, facts, group, of_kind, rendered, template_hash

from gantry_access import Credentials
from gantry_client import Admin, ClientError, ClientSettings
from gantry_operator.objects import configuration, group_token, secret
from gantry_operator.objects.base import Object
from gantry_remoting import Channel, ClientTlsSettings, RemotingError
from gantry_status import PageReader, Phase, StatusPageError
from gantry_testing.accounts import ACCOUNTS, ADMIN
from gantry_testing.local import Dialogue

ANY_CERTIFICATE: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Accepts any certificate, since only this machine answers."""
ANY_CERTIFICATE.check_hostname, ANY_CERTIFICATE.verify_mode = False, ssl.CERT_NONE

KEY: Final = bytes(32)
"""The key of the operator, from which the group's token is derived."""

EPOCH: Final = 1000
"""The epoch of the first promotion, before the number of starts is added."""

NO_NAME_SERVERS: Final[Mapping[str, str]] = {}
ANSWER_S: Final = 60.0
"""The limit for one reply of the broker or the sidecar."""

WAIT_S: Final = 240.0
"""The limit for a start."""


@final
class LocalPod:
    """A context manager that runs a member of a group's first shard."""

    def __init__(
        self,
        folder: Path,
        buffers: Path,
        *,
        pod: str = f"{GROUP}-0-master-0",
        secrets: Secrets | None = None,
        name_servers: Mapping[str, str] = NO_NAME_SERVERS,
    ) -> None:
        """``buffers`` is a folder in memory, for write buffers of that medium."""
        self.starts = 0
        """How often the pod was created, the first time included."""

        self.is_rolling = True
        """Whether a changed template recreates the pod; a twin turns that off."""

        self.external_addresses: Mapping[str, str] = {}
        """The addresses that the cluster has assigned to Services for external clients."""

        self._started_with: Mapping[str, Any] = {}
        """The spec with which the present processes were started."""

        self._folder: Final = folder
        self._mapping: Final = PodMapping(folder, buffers, name_servers)
        self._hash = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pod: Final = pod
        self._secrets: Final = certificates() if secrets is None else secrets
        self._token: Final = group_token(KEY, group(GROUP))
        self._make_volumes()

    def __enter__(self) -> LocalPod:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # -- what the cluster does -----------------------------------------------------------------------------------------

    def edit(self, spec: Mapping[str, Any]) -> None:
        """Run the pod of a group with this spec; return when the broker is the master."""
        if self.run_spec(spec):
            self.promote(EPOCH + self.starts, 2)

    def run_spec(self, spec: Mapping[str, Any]) -> bool:
        """Run the pod of a group with this spec, without a role. Return whether the pod was recreated."""
        one = group(GROUP, **spec)
        known = facts(external_addresses=self.external_addresses)
        objects, wanted = rendered(one, known), template_hash(one, known)
        data = of_kind(objects, "ConfigMap")[f"{GROUP}-0"]["data"]
        for name, text in data.items():
            self._mount("group", name, text)
        if wanted == self._hash or (self.starts and not self.is_rolling):
            return False
        self._end()
        self._hash, self._started_with = wanted, spec
        self._start(broker_sets(objects)[self._pod.rpartition("-")[0]]["spec"]["template"])
        self.starts += 1
        return True

    def promote(self, epoch: int, electable: int) -> None:
        """Promote the broker as the operator does; ``electable`` is the number of its one electable slave."""
        self._order("promote", {"epoch": epoch, "electable": [electable]})

    def follow(self, epoch: int, master: LocalPod) -> None:
        """Order the broker to follow a master, as the operator does."""
        self._order("demote", {"epoch": epoch, "master": f"127.0.0.1:{master._mapping.broker + 1}"})

    def _order(self, what: str, order: Mapping[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"{self._sidecar}/v1/role/{what}"
        answer = httpx.post(url, json=order, headers=headers, timeout=ANSWER_S, verify=ANY_CERTIFICATE)
        assert answer.status_code == 200, answer.text

    def _make_volumes(self) -> None:
        for place in self._mapping.folders.values():
            place.mkdir(parents=True, exist_ok=True)
        known = dict.fromkeys((self._pod, f"{GROUP}-0"), "127.0.0.1")
        (self._mapping.folders[configuration.RUN] / "addresses.json").write_text(json.dumps(known))
        made = {name: base64.b64decode(one).decode() for name, one in secret(group(GROUP), self._token)["data"].items()}
        for name in ("tokens", "read-tokens"):
            self._mount("sidecar", name, made[name])
        self._mount("replication", "secret", made["replication"])
        self._mount("accounts", "plain_acl.yml", ACCOUNTS)
        self._mount("accounts", "credentials", f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")

    def _mount(self, volume: str, name: str, text: str) -> None:
        """Replace a file of a volume atomically, as kubelet does."""
        path = self._folder / volume / name
        draft = path.with_name(f"..{name}")
        draft.write_text(text)
        os.replace(draft, path)

    def _start(self, template: Object) -> None:
        for volume in template["spec"]["volumes"]:
            for name, text in self._secrets.get(volume.get("secret", {}).get("secretName", ""), {}).items():
                self._mount(volume["name"], name, text)
        made = containers(template)
        [conf] = [one["value"] for one in made["broker"]["env"] if one["name"] == "GANTRY_BROKER_CONF"]
        variables = {"POD_NAME": self._pod, "POD_NAMESPACE": "shop", "GANTRY_BROKER_CONF": self._mapping.conf(conf)}
        with suppress(FileNotFoundError):
            (self._mapping.folders[configuration.RUN] / "status").unlink()
        run = str(self._mapping.folders[configuration.RUN])
        sidecar = self._mapping.arguments(made["sidecar"]["args"])
        self._process(
            ["sidecar", "--group", str(self._mapping.folders[configuration.CONFIGURATION]), *sidecar], variables
        )
        self._process([*made["broker"]["args"][1:], "--run", run, "--alive", "0"], variables)
        wait_for(self._is_serving, "the broker serves", WAIT_S)
        wait_for(self._has_report, "the sidecar has a report of the broker", WAIT_S)

    def _process(self, words: list[str], variables: Mapping[str, str]) -> None:
        log = (self._folder / f"{words[0]}-{self.starts}.log").open("wb")
        with log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "gantry_cli", "pod", *words],
                    env={**os.environ, **variables},
                    stdout=log,
                    stderr=log,
                )
            )

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _is_serving(self) -> bool:
        page = self._mapping.folders[configuration.RUN] / "status"
        with suppress(StatusPageError), PageReader(str(page)) as reader:
            return reader.read().status.phase is Phase.SERVING
        for process in self._processes:
            assert process.poll() is None, self.logs()
        return False

    def _has_report(self) -> bool:
        return self.status().get("reported_role") is not None

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(path.read_text()[-3000:] for path in sorted(self._folder.glob("*.log")))

    # -- reports -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the document `/v1/status`, empty while the sidecar restarts."""
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"{self._sidecar}/v1/status"
        try:
            found: dict[str, Any] = httpx.get(url, headers=headers, timeout=ANSWER_S, verify=ANY_CERTIFICATE).json()
        except httpx.HTTPError:
            return {}
        return found

    def arguments(self) -> dict[str, str]:
        """Return the sidecar's options, each with its last value, and the number of peers; 0 while it restarts."""
        children = Path(f"/proc/{self._processes[0].pid}/task/{self._processes[0].pid}/children").read_text().split()
        words: list[str] = []
        if children:
            with suppress(OSError):  # the sidecar was restarted at this moment
                words = Path(f"/proc/{children[0]}/cmdline").read_text().split("\0")
        found = {word: after for word, after in pairwise(words) if word.startswith("--")}
        return found | {"--peer": str(words.count("--peer"))}

    async def config(self) -> dict[str, str]:
        """Return the settings that the broker reports."""
        async with Admin(self._unused_address, client_settings=self._client_settings()) as admin:
            found = await admin.brokers.config(self.address)
        return {key: self._mapping.with_pod_addresses(value) for key, value in found.items()}

    async def tables(self) -> dict[str, Any]:
        """Return the topics and groups that the broker reports."""
        async with Admin(self._unused_address, client_settings=self._client_settings()) as admin:
            topics = await admin.brokers.topic_table(self.address)
            groups = await admin.brokers.group_table(self.address)
        return {
            "topics": {name: {"queues": one.write_queue_nums} for name, one in topics.items()},
            "groups": {name: {"retryMax": one.retry_max_times} for name, one in groups.items()},
        }

    async def write(self, count: int = 20) -> None:
        """Send a number of messages, all acknowledged."""
        given = self._client_settings()
        assert given.credentials is None, "cannot write messages to a broker with accounts"
        tls = given.tls.client_context() if isinstance(given.tls, ClientTlsSettings) else None
        channel = await Channel.connect(self.address, on_request=lambda command, channel: None, tls=tls)
        try:
            for _ in range(count):
                await Dialogue(channel, []).send_ok(b"x" * 1000)
        finally:
            await channel.close()

    async def plain_access(self) -> dict[str, str]:
        """Return whether the broker answers a client without account and certificate: `plain`, yes or no."""
        try:
            async with Admin(self._unused_address) as admin:
                await admin.brokers.config(self.address)
        except (ClientError, RemotingError, OSError):
            return {"plain": "no"}
        return {"plain": "yes"}

    @property
    def _sidecar(self) -> str:
        scheme = "https" if has_tls(self._started_with) else "http"
        return f"{scheme}://127.0.0.1:{self._mapping.http}"

    @property
    def address(self) -> str:
        """The broker's address for clients."""
        return f"127.0.0.1:{self._mapping.broker}"

    @property
    def _unused_address(self) -> str:
        """An address without a listener, since no name server is used."""
        return "127.0.0.1:1"

    def _client_settings(self) -> ClientSettings:
        access = self._started_with.get("access", {})
        authority = self._mapping.folders[configuration.CERTIFICATES] / "ca.crt"
        return ClientSettings(
            credentials=Credentials(ADMIN.access_key, ADMIN.secret_key) if access.get("aclSecret") else None,
            tls=ClientTlsSettings(authority_file=str(authority)) if has_tls(self._started_with) else None,
            connect_timeout_ms=int(ANSWER_S * 1000),
            request_timeout_ms=int(ANSWER_S * 1000),
        )
