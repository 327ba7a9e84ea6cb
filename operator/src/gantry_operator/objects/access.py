"""Who a group's pods are to the API server, and what is secret inside of the group.

Each shard has a ServiceAccount of its own, which may read and renew the one Lease of that shard, by name, and nothing
else. Its token is mounted in the sidecar's container alone. Whoever takes over a broker can so not touch another shard.

Everything secret is derived from one token, which the operator made once and keeps in the Secret that is rendered here.
From what somebody may read to look at metrics, the token that gives orders cannot be computed back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, labels, made
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup

RBAC = "rbac.authorization.k8s.io"
TOKEN_CHARACTERS_MIN = 32


def secret(group: BrokerGroup, facts: Facts) -> Object:
    """The group's own."""
    assert len(facts.token) >= TOKEN_CHARACTERS_MIN, "a token is made before anything is rendered, and long"
    read, replication = derived(facts.token, "read"), derived(facts.token, "replication")
    texts = {
        "token": facts.token,
        "tokens": f"operator:{facts.token}\n",
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
