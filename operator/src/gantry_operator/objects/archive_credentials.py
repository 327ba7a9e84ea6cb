"""The secret and the certificate of a group's archive server, in one Secret that is created and never read or changed.

    ca.crt            brokers verify the server with it
    secret            both sides prove that they know it
    tls.crt, tls.key  the server's certificate, for the name of its Service

As the group's other Secrets (``access``, ``authority``), all of them are derived from the operator's key: a Secret that
was deleted is created again with the same content. The certificate depends on no other part of the spec, so that every
group can have an archive, and the server never gets a key of the brokers. The key of the authority is in no Secret.
"""

from __future__ import annotations

import base64
from datetime import datetime

from gantry_operator.objects import names
from gantry_operator.objects.access import derive_secret, group_token
from gantry_operator.objects.authority import derive_authority_for, issue_server_certificate
from gantry_operator.objects.base import Object, labels, make_object
from gantry_spec.manifest.group import BrokerGroup


def archive_secret(key: bytes, group: BrokerGroup, created_at: datetime) -> Object:
    """Return the Secret for brokers and archive server, which is to be created if it does not exist."""
    metadata = group.metadata
    authority = derive_authority_for(key, group, "archive", created_at)
    host = names.archive_server_host(metadata.name, metadata.namespace)
    server = issue_server_certificate(
        authority, derive_secret(group_token(key, group), "archive key"), host, created_at
    )
    texts = {
        "ca.crt": authority.certificate,
        "secret": derive_secret(group_token(key, group), "archive"),
        "tls.crt": server.certificate,
        "tls.key": server.key,
    }
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    body = {"type": "Opaque", "data": data}
    name = names.archive_server_name(metadata.name)
    return make_object(group, ("v1", "Secret"), name, labels(group, names.ARCHIVE_SERVER), body)
