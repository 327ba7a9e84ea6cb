"""Who a group's pods are to the API server, and what is secret inside of the group.

Each shard has a ServiceAccount of its own, which may read and renew the one Lease of that shard, by name, and nothing
else. Its token is mounted in the sidecar's container alone. Whoever takes over a broker can so not touch another shard.

A group's Secret is created, and never read, changed or applied: so the operator needs no right to read Secrets, neither
this group's nor anybody else's. It knows the token that is in there, since it is derived from a key of its own:

    the operator's key --- group_token ---> the group's token --- derived ---> tokens for other purposes

From what somebody may read to look at metrics, the token that gives orders cannot be computed back. Whoever replaces
the key deletes the groups' Secrets; they are made again, and sidecars and brokers take the new ones without a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, labels, made
from gantry_spec.manifest.group import BrokerGroup

RBAC = "rbac.authorization.k8s.io"
TOKEN_CHARACTERS_MIN = 32
KEY_BYTES_MIN = 32


def group_token(key: bytes, group: BrokerGroup) -> str:
    """What the operator with this key shows to the group's sidecars; another one for each group that ever was."""
    assert len(key) >= KEY_BYTES_MIN, "a key is long, or all groups' tokens can be guessed"
    identity = f"{group.metadata.namespace}/{group.metadata.name}/{group.metadata.uid}"
    return hmac.new(key, identity.encode(), hashlib.sha256).hexdigest()


def secret(group: BrokerGroup, token: str) -> Object:
    """The group's own. Create it; if it exists already, that is well."""
    assert len(token) >= TOKEN_CHARACTERS_MIN, "a token is long, or it can be guessed"
    read, replication = derived(token, "read"), derived(token, "replication")
    texts = {
        "token": token,
        "tokens": f"operator:{token}\n",
        "read-token": read,
        "read-tokens": f"reader:{read}\n",
        "replication": replication,
    }
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    body = {"type": "Opaque", "data": data}
    return made(group, ("v1", "Secret"), names.secret_name(group.metadata.name), labels(group, names.BROKER), body)


def derived(token: str, purpose: str) -> str:
    """Another secret for another purpose, from which the first cannot be had."""
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def shard_account(group: BrokerGroup, shard: int) -> list[Object]:
    """The ServiceAccount of a shard's pods, and what it may."""
    name, marked = names.shard_name(group.metadata.name, shard), labels(group, names.BROKER, shard)
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [name],
        "verbs": ["get", "update"],
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": group.metadata.namespace}
    role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    return [
        made(group, ("v1", "ServiceAccount"), name, marked, {"automountServiceAccountToken": False}),
        made(group, (f"{RBAC}/v1", "Role"), name, marked, {"rules": [rule]}),
        made(group, (f"{RBAC}/v1", "RoleBinding"), name, marked, {"roleRef": role, "subjects": [subject]}),
    ]
