"""The ServiceAccounts of a group's pods, and the secrets inside of the group.

Each shard has its own ServiceAccount, which may only read and update the one Lease of that shard, by name. Its token is
mounted in the sidecar's container alone. So an attacker who controls a broker cannot change a Lease, and one who
controls a sidecar can change only that of its own shard. The chart's admission policies keep it from changing the
record in it (``gantry_spec.admission``); without them it could.

A group's Secret is created, and never read, changed or applied. So the operator needs no right to read Secrets, neither
of groups nor of others. It knows the token in the Secret, because it derives the token from its own key:

    the operator's key --- group_token ---> the group's token --- derive_secret ---> tokens for other purposes

The token that gives orders cannot be computed from the token for reading metrics. To replace the key, delete its Secret
and the Secrets of all groups while no operator runs, because a leader has read the key and creates Secrets from it. The
next leader creates all of them again, and sidecars and brokers load the new ones without a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, labels, make_object
from gantry_spec.manifest.group import BrokerGroup

RBAC = "rbac.authorization.k8s.io"
TOKEN_CHARACTERS_MIN = 32
"""The fewest characters of a group's token."""

KEY_BYTES_MIN = 32
"""The fewest bytes of the operator's key."""


def group_token(key: bytes, group: BrokerGroup) -> str:
    """Return the token with which the operator identifies itself to the sidecars; it is unique for each group's uid."""
    assert len(key) >= KEY_BYTES_MIN, "a short key would allow to guess the tokens of all groups"
    identity = f"{group.metadata.namespace}/{group.metadata.name}/{group.metadata.uid}"
    return hmac.new(key, identity.encode(), hashlib.sha256).hexdigest()


def secret(group: BrokerGroup, token: str) -> Object:
    """Return the Secret of a group, which is to be created if it does not exist."""
    assert len(token) >= TOKEN_CHARACTERS_MIN, "a short token could be guessed"
    read, replication = derive_secret(token, "read"), derive_secret(token, "replication")
    texts = {
        "token": token,
        "tokens": f"operator:{token}\n",
        "read-token": read,
        "read-tokens": f"reader:{read}\n",
        "replication": replication,
    }
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    body = {"type": "Opaque", "data": data}
    name = names.secret_name(group.metadata.name)
    return make_object(group, ("v1", "Secret"), name, labels(group, names.BROKER), body)


def derive_secret(token: str, purpose: str) -> str:
    """Derive a secret for another purpose, from which the token cannot be computed."""
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def shard_account(group: BrokerGroup, shard: int) -> list[Object]:
    """Return the ServiceAccount of a shard's pods, with its Role and RoleBinding."""
    name, own_labels = names.shard_name(group.metadata.name, shard), labels(group, names.BROKER, shard)
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [name],
        "verbs": ["get", "update"],
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": group.metadata.namespace}
    role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    return [
        make_object(group, ("v1", "ServiceAccount"), name, own_labels, {"automountServiceAccountToken": False}),
        make_object(group, (f"{RBAC}/v1", "Role"), name, own_labels, {"rules": [rule]}),
        make_object(group, (f"{RBAC}/v1", "RoleBinding"), name, own_labels, {"roleRef": role, "subjects": [subject]}),
    ]
