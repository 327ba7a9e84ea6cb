"""The desired Kubernetes objects of a group, as plain values: nothing here does I/O or reads a clock.

    render(group, facts)     all objects except the Secret, in the order in which they are to be applied
    group_token, secret      the operator's token for sidecars, and the Secret with it, which is created, never applied
    derive_authority         the certificate authority of a group that has its own one; `authority_secret` has its key
    facts                    the input besides the group: image, present roles, which other CRDs exist
    names                    the names of all objects, and which member a pod is
    network                  Services, policies, and the addresses of Services for clients outside of the cluster
    archive_server           the server that returns archived messages to brokers; `archive_secret` has its credentials
    gateway                  the TCPRoutes of external Services, and their ports at a Gateway
    memory                   the memory of a pod; resources that cannot work are refused (``ImpossibleResources``)

The same group and facts always result in the same objects, so that applying them again changes nothing.
"""

from gantry_operator.objects.access import group_token, secret
from gantry_operator.objects.archive_credentials import archive_secret
from gantry_operator.objects.authority import authority_secret, derive_authority
from gantry_operator.objects.facts import ArchiveFacts, Facts, NodeFacts, ShardFacts
from gantry_operator.objects.memory import ImpossibleResources, hugepages_shortage
from gantry_operator.objects.network import external_address
from gantry_operator.objects.render import render

__all__ = [
    "ArchiveFacts",
    "Facts",
    "ImpossibleResources",
    "NodeFacts",
    "ShardFacts",
    "archive_secret",
    "authority_secret",
    "derive_authority",
    "external_address",
    "group_token",
    "hugepages_shortage",
    "render",
    "secret",
]
