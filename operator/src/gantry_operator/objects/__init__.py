"""What should exist in Kubernetes for a group, as plain values: nothing here talks to anybody or reads a clock.

    render(group, facts)     every object but the Secret, in the order in which they are to be applied
    group_token, secret      what the operator shows to sidecars; the Secret with it, which is created and never applied
    facts                    what is known from elsewhere: image, roles of now, which other CRDs exist
    names                    what everything is called, and which member a pod is
    network                  Services, policies, and where a Service for clients outside of the cluster is reached
    memory                   how much a pod gets; what cannot be is refused (``CannotFit``)

The same group and facts always give the same objects, so that applying them again changes nothing.
"""

from gantry_operator.objects.access import group_token, secret
from gantry_operator.objects.facts import Facts, NodeFacts, ShardFacts
from gantry_operator.objects.memory import CannotFit, hugepages_shortage
from gantry_operator.objects.network import outside_address
from gantry_operator.objects.render import render

__all__ = [
    "CannotFit",
    "Facts",
    "NodeFacts",
    "ShardFacts",
    "group_token",
    "hugepages_shortage",
    "outside_address",
    "render",
    "secret",
]
