"""Accounts and certificates of a local group: a Secret is a folder in STATE, with the keys that it has in a cluster.

    STATE/secrets/NAME/plain_acl.yml    the accounts, for brokers and name servers; may be edited at any time
    STATE/secrets/NAME/credentials      the group's own account among them, an administrator's
    STATE/secrets/NAME/tls.crt          and tls.key, ca.crt: what brokers and name servers show, and who vouches for it
    STATE/replication-secret            made here: who shows it may follow

What the manifest asks for and is not there stops the start: a group that runs open though it should not is the one
thing that must not happen. Sidecars of a group with accounts show messages to nobody without a token.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_access import AccessFileError, read_credentials
from gantry_cli.account import client_settings
from gantry_cli.errors import CliError
from gantry_cli.local.state import GroupRecord, GroupState, MemberRecord
from gantry_cli.processes import boot_id_of
from gantry_client import ClientSettings
from gantry_remoting import ClientTlsSettings
from gantry_remoting.durable_files import replace_file
from gantry_spec.manifest import Spec

SECRET_BYTES: Final = 32
CODE_TIMEOUT_S: Final = 5.0


@final
@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what in a group, and as whom the group itself speaks. Files, and no content of theirs."""

    accounts: Path | None = None
    credentials: Path | None = None
    replication: Path | None = None
    certificates: Path | None = None
    """A folder."""

    @property
    def broker_keys(self) -> tuple[tuple[str, str], ...]:
        """For a ``broker.conf``."""
        keys = []
        if self.accounts is not None:
            keys += [("haSecretPath", str(self.replication)), ("aclCredentialsPath", str(self.credentials))]
        if self.certificates is not None:
            keys += [("tlsEnable", "true"), ("tlsClientTrustCertPath", str(self.certificates / "ca.crt"))]
            keys += [("tlsClientCheckHostName", "false")]  # as in a cluster, where one certificate is for all members
            keys += [
                (f"haTls{name}Path", str(self.certificates / file))
                for name, file in (("Cert", "tls.crt"), ("Key", "tls.key"), ("TrustCert", "ca.crt"))
            ]
        return (*keys, *self._server_keys)

    @property
    def _server_keys(self) -> tuple[tuple[str, str], ...]:
        """For brokers and name servers alike."""
        keys = [] if self.accounts is None else [("aclEnable", "true"), ("aclFile", str(self.accounts))]
        if self.certificates is not None:
            keys += [
                ("tlsMode", "enforcing"),
                ("tlsServerCertPath", str(self.certificates / "tls.crt")),
                ("tlsServerKeyPath", str(self.certificates / "tls.key")),
            ]
        return tuple(keys)

    @property
    def sidecar_words(self) -> list[str]:
        """For a sidecar. On a group without accounts whoever is on this machine may look."""
        words = ["--open-reads"] if self.credentials is None else ["--broker-credentials", str(self.credentials)]
        if self.certificates is not None:
            words += ["--broker-tls-ca", str(self.certificates / "ca.crt"), "--broker-tls-verify", "authority"]
        return words

    @property
    def name_server_conf(self) -> str:
        """A ``namesrv.conf``; empty if there is nothing to say."""
        return "".join(f"{key}={value}\n" for key, value in self._server_keys)

    def client_settings(self) -> ClientSettings:
        """As whom the group's own clients speak. Raises CliError when the account cannot be read."""
        if self.credentials is None and self.certificates is None:
            return client_settings()
        tls = None
        if self.certificates is not None:
            tls = ClientTlsSettings(authority_file=str(self.certificates / "ca.crt"), is_host_name_checked=False)
        try:
            account = None if self.credentials is None else read_credentials(self.credentials)
            return ClientSettings(tls=tls, credentials=account)
        except AccessFileError as error:
            raise CliError(f"{error}", "it has two lines, accessKey: NAME and secretKey: SECRET") from error


def access_of(spec: Spec, state: GroupState) -> Access:
    """What the spec asks for. Raises CliError for what is not there."""
    accounts = _secret(state, "aclSecret", spec.access.acl_secret, ("plain_acl.yml", "credentials"))
    certificates = _secret(state, "tlsSecret", spec.access.tls_secret, ("tls.crt", "tls.key", "ca.crt"))
    access = Access(certificates=certificates)
    if accounts is not None:
        own = (accounts / "plain_acl.yml", accounts / "credentials", state.path / "replication-secret")
        access = Access(*own, certificates)
    access.client_settings()
    return access


def _secret(state: GroupState, field: str, name: str, files: tuple[str, ...]) -> Path | None:
    """The folder of a Secret, with all that must be in it."""
    folder = state.path / "secrets" / name
    for file in files if name else ():
        if not (folder / file).is_file():
            remedy = f"put there what the Secret has in a cluster, or leave {field} out"
            raise CliError(f"spec.access.{field}: there is no {folder / file}", remedy)
    return folder if name else None


def make_replication_secret(access: Access) -> None:
    """Once for a group."""
    if access.replication is not None and not access.replication.exists():
        replace_file(access.replication, secrets.token_urlsafe(SECRET_BYTES).encode(), mode=0o600)


# -- the token of the sidecars -----------------------------------------------------------------------------------------


class SidecarNotRunning(OSError):
    """No process runs that the supervisor has started as this sidecar. The caller should not ask again."""


def ask_sidecar(member: MemberRecord, path: str, token: str, *, timeout_s: float, data: bytes | None = None) -> bytes:
    """Return what a sidecar answers; with ``data`` it is a POST. Blocks. Raises OSError and its SidecarNotRunning.

    The token is shown to the process only that the supervisor has started, since another program may have its port by
    now, and through no proxy of the environment.
    """
    if member.sidecar_pid is None or boot_id_of(member.sidecar_pid) != member.sidecar_boot_id:
        raise SidecarNotRunning("it does not run")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{member.sidecar_url}{path}", data, headers)
    with direct.open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content


def console_address(record: GroupRecord, token: str) -> str:
    """The console's address with a new code. Blocks. Raises OSError when its sidecar gives none."""
    answer = ask_sidecar(record.members[0], "/v1/console/codes", token, timeout_s=CODE_TIMEOUT_S, data=b"")
    try:
        return f"{record.console_url}#code={json.loads(answer)['code']}"
    except (ValueError, KeyError) as error:
        raise OSError("its answer holds no code") from error
