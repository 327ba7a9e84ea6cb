"""Accounts and certificates of a local group: a Secret is a folder in STATE, with the keys that it has in a cluster.

    STATE/secrets/NAME/plain_acl.yml    the accounts, for brokers and name servers; may be edited at any time
    STATE/secrets/NAME/credentials      the group's own admin account, one of these
    STATE/secrets/NAME/tls.crt          and tls.key, ca.crt: the certificate of brokers and name servers, and its CA
    STATE/replication-secret            created here: a slave must present it to replicate

`proxy.tls.secret` and `proxy.credentialsSecret` name Secrets with the same keys, which only the proxies use.

A Secret that the manifest names and that is missing stops the start: a group whose manifest requires accounts must
never run without access control. The sidecars of a group with accounts show its state and messages only with a token.
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
from gantry_cli.local.records import GroupRecord, MemberRecord
from gantry_cli.local.state import GroupState
from gantry_cli.processes import boot_id_of
from gantry_client import ClientSettings
from gantry_remoting import ClientTlsSettings
from gantry_remoting.durable_files import replace_file
from gantry_spec.manifest import Spec
from gantry_spec.manifest.parts import CertificateIssuer

SECRET_BYTES: Final = 32
"""The number of random bytes in the replication secret."""

CODE_TIMEOUT_S: Final = 5.0
"""How long to wait for a one-time code of the console."""
CODES_PATH: Final = "/v1/console/codes"
"""The endpoint of the sidecar that makes one."""


@final
@dataclass(frozen=True, slots=True)
class Access:
    """The files with a group's accounts, its own credentials and its certificates; None for what it does not use."""

    accounts: Path | None = None
    """The file with the accounts, `plain_acl.yml`."""

    credentials: Path | None = None
    """The file with the group's own admin account."""

    replication: Path | None = None
    """The file with the replication secret."""

    certificates: Path | None = None
    """The folder of the certificate, its key and its CA."""

    @property
    def broker_keys(self) -> tuple[tuple[str, str], ...]:
        """The lines of access control and TLS for a ``broker.conf``."""
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
        """The lines that brokers and name servers share."""
        keys = [] if self.accounts is None else [("aclEnable", "true"), ("aclFile", str(self.accounts))]
        if self.certificates is not None:
            keys += [
                ("tlsMode", "enforcing"),
                ("tlsServerCertPath", str(self.certificates / "tls.crt")),
                ("tlsServerKeyPath", str(self.certificates / "tls.key")),
            ]
        return tuple(keys)

    @property
    def sidecar_arguments(self) -> list[str]:
        """The access arguments of a sidecar. Without accounts every user of this machine may read."""
        words = ["--open-reads"] if self.credentials is None else ["--broker-credentials", str(self.credentials)]
        if self.certificates is not None:
            words += ["--broker-tls-ca", str(self.certificates / "ca.crt"), "--broker-tls-verify", "authority"]
        return words

    @property
    def name_server_conf(self) -> str:
        """The text of a ``namesrv.conf``; empty without accounts and certificates."""
        return "".join(f"{key}={value}\n" for key, value in self._server_keys)

    def client_settings(self) -> ClientSettings:
        """Return the settings of the group's own clients. Raises CliError when the account cannot be read."""
        if self.credentials is None and self.certificates is None:
            return client_settings()
        tls = None
        if self.certificates is not None:
            tls = ClientTlsSettings(authority_file=str(self.certificates / "ca.crt"), is_host_name_checked=False)
        try:
            account = None if self.credentials is None else read_credentials(self.credentials)
            return ClientSettings(tls=tls, credentials=account)
        except AccessFileError as error:
            raise CliError(f"{error}", "write two lines, accessKey: NAME and secretKey: SECRET") from error


def read_access(spec: Spec, state: GroupState) -> Access:
    """Return the access files that the spec requires. Raises CliError for a missing file or unreadable account.

    The Secrets of proxies are only checked: `gantry_cli.local.proxy` uses their folders.
    """
    if spec.access.certificates.issuer is not CertificateIssuer.NONE:
        remedy = "set access.tlsSecret instead, and put tls.crt, tls.key and ca.crt into the folder of that Secret"
        raise CliError("spec.access.certificates: local groups issue no certificates", remedy)
    accounts = _secret(state, "access.aclSecret", spec.access.acl_secret, ("plain_acl.yml", "credentials"))
    certificates = _secret(state, "access.tlsSecret", spec.access.tls_secret, ("tls.crt", "tls.key", "ca.crt"))
    if spec.proxy.replicas:
        keys = ("tls.crt", "tls.key", *(("ca.crt",) if spec.proxy.tls.requires_client_certificate else ()))
        _secret(state, "proxy.tls.secret", spec.proxy.tls.secret, keys)
        _secret(state, "proxy.credentialsSecret", spec.proxy.credentials_secret, ("credentials",))
    access = Access(certificates=certificates)
    if accounts is not None:
        own = (accounts / "plain_acl.yml", accounts / "credentials", state.path / "replication-secret")
        access = Access(*own, certificates)
    access.client_settings()
    return access


def secret_folder(state: GroupState, name: str) -> Path:
    """Return the folder of a Secret, whether it exists or not."""
    return state.path / "secrets" / name


def _secret(state: GroupState, field: str, name: str, files: tuple[str, ...]) -> Path | None:
    """Return the folder of a Secret, None if no Secret is named. Raises CliError for a missing file."""
    folder = secret_folder(state, name)
    for file in files if name else ():
        if not (folder / file).is_file():
            remedy = f"create it with the content that the Secret has in a cluster, or remove {field} from the manifest"
            raise CliError(f"spec.{field}: {folder / file} not found", remedy)
    return folder if name else None


def make_replication_secret(access: Access) -> None:
    """Create the replication secret of a group with accounts, unless it exists."""
    if access.replication is not None and not access.replication.exists():
        replace_file(access.replication, secrets.token_urlsafe(SECRET_BYTES).encode(), mode=0o600)


# -- the token of the sidecars -----------------------------------------------------------------------------------------


class SidecarNotRunning(OSError):
    """The sidecar process that the supervisor started does not run. The caller should not retry."""


def require_sidecar(member: MemberRecord) -> None:
    """Raise ``SidecarNotRunning`` unless the sidecar process runs that the supervisor started."""
    if member.sidecar_pid is None or boot_id_of(member.sidecar_pid) != member.sidecar_boot_id:
        raise SidecarNotRunning("the sidecar does not run")


def ask_sidecar(member: MemberRecord, path: str, token: str, *, timeout_s: float, data: bytes | None = None) -> bytes:
    """Return a sidecar's answer to a GET, or to a POST of ``data``. Blocks. Raises OSError.

    The token is sent only to the process that the supervisor started, since another program may have taken its port,
    and never through a proxy of the environment.
    """
    require_sidecar(member)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{member.sidecar_url}{path}", data, headers)
    with direct.open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content


def console_address(record: GroupRecord, token: str) -> str:
    """Return the console's address with a new one-time code. Blocks. Raises OSError when its sidecar gives none."""
    answer = ask_sidecar(record.members[0], CODES_PATH, token, timeout_s=CODE_TIMEOUT_S, data=b"")
    try:
        return f"{record.console_url}#code={json.loads(answer)['code']}"
    except (ValueError, KeyError) as error:
        raise OSError("the sidecar's answer has no code") from error
