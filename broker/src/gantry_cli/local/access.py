"""Accounts of a local group: a Secret is a folder in STATE, with the keys that the Secret has in a cluster.

    STATE/secrets/NAME/plain_acl.yml    the accounts, for brokers and name servers; may be edited at any time
    STATE/secrets/NAME/credentials      the group's own account among them, an administrator's
    STATE/replication-secret            made here: who shows it may follow

What the manifest asks for and is not there stops the start: a group that runs open though it should not is the one
thing that must not happen. Sidecars of a group with accounts show messages to nobody without a token.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_access import AccessFileError, read_credentials
from gantry_cli.account import client_settings
from gantry_cli.errors import CliError
from gantry_cli.local.state import GroupState
from gantry_cli.local.whole_file import write_whole
from gantry_client import ClientSettings
from gantry_spec.manifest import Spec

SECRET_BYTES: Final = 32


@final
@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what in a group, and as whom the group itself speaks. Files, and no content of theirs."""

    accounts: Path | None = None
    credentials: Path | None = None
    replication: Path | None = None

    @property
    def broker_keys(self) -> tuple[tuple[str, str], ...]:
        """For a ``broker.conf``."""
        if self.accounts is None:
            return ()
        return (
            ("haSecretPath", str(self.replication)),
            ("aclEnable", "true"),
            ("aclFile", str(self.accounts)),
            ("aclCredentialsPath", str(self.credentials)),
        )

    @property
    def name_server_conf(self) -> str:
        """A ``namesrv.conf``; empty if there is nothing to say."""
        return "" if self.accounts is None else f"aclEnable=true\naclFile={self.accounts}\n"

    def client_settings(self) -> ClientSettings:
        """As whom the group's own clients speak. Raises CliError when the account cannot be read."""
        if self.credentials is None:
            return client_settings()
        try:
            return ClientSettings(credentials=read_credentials(self.credentials))
        except AccessFileError as error:
            raise CliError(f"{error}", "it has two lines, accessKey: NAME and secretKey: SECRET") from error


def access_of(spec: Spec, state: GroupState) -> Access:
    """What the spec asks for. Raises CliError for what is not there."""
    if spec.access.tls_secret:
        raise CliError(
            "spec.access.tlsSecret: a local group has no certificates", "leave it out here; see docs/local-groups.md"
        )
    if not spec.access.acl_secret:
        return Access()
    folder = state.path / "secrets" / spec.access.acl_secret
    access = Access(folder / "plain_acl.yml", folder / "credentials", state.path / "replication-secret")
    for path in (access.accounts, access.credentials):
        if path is not None and not path.is_file():
            remedy = "put there what the Secret has in a cluster, or leave aclSecret out"
            raise CliError(f"spec.access.aclSecret: there is no {path}", remedy)
    access.client_settings()
    return access


def make_replication_secret(access: Access) -> None:
    """Once for a group."""
    if access.replication is not None and not access.replication.exists():
        write_whole(access.replication, secrets.token_urlsafe(SECRET_BYTES).encode())
