"""What a group offers to whoever reads it: where name servers and sidecars are, and in which Secrets the keys. Pure.

Of a group's Secrets only what reads is handed on: the token for reading, the accounts' `credentials` and the public
`ca.crt`; never a token that gives orders, and never a private key.
"""

from __future__ import annotations

from typing import final

import msgspec

from gantry_operator.objects import configuration, names
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.pipelines.kinds import Pipeline


@final
class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline reads."""

    name_servers: tuple[str, ...]
    sidecars: tuple[str, ...] = ()
    group: str = ""
    token_secret: str = ""
    """With the key `read-token`."""

    credentials_secret: str = ""
    """With the key `credentials`."""

    ca_secret: str = ""
    """With the key `ca.crt`."""


def source_of(pipeline: Pipeline, group: BrokerGroup | None) -> Source:
    """Of a pipeline that names this group, or name servers of its own."""
    access = pipeline.spec.access
    if group is None:
        return Source(
            name_servers=tuple(pipeline.spec.name_servers),
            credentials_secret=access.credentials_secret,
            ca_secret=access.tls_secret,
        )
    name, namespace, spec = group.metadata.name, group.metadata.namespace, group.spec
    scheme = "https" if spec.access.tls_secret else "http"
    sidecars = tuple(
        f"{scheme}://{names.member_host(name, namespace, shard, member)}:{names.SIDECAR_PORT}"
        for shard in range(spec.shards)
        for member in spec.members
    )
    return Source(
        name_servers=configuration.name_servers(group),
        sidecars=sidecars,
        group=name,
        token_secret=names.secret_name(name),
        credentials_secret=access.credentials_secret or spec.access.acl_secret,
        ca_secret=access.tls_secret or spec.access.tls_secret,
    )
