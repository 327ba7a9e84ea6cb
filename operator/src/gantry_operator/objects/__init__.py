"""What should exist in Kubernetes for a group, as plain values: nothing here talks to anybody or reads a clock.

    render(group, facts)     every object, in the order in which they are to be applied
    facts                    what is known from elsewhere: image, token, roles of now, which other CRDs exist
    names                    what everything is called, and which member a pod is
    memory                   how much a pod gets; what cannot be is refused (``CannotFit``)

The same group and facts always give the same objects, so that applying them again changes nothing.
"""

from gantry_operator.objects.facts import Facts, NodeFacts, ShardFacts
from gantry_operator.objects.memory import CannotFit, hugepages_shortage
from gantry_operator.objects.render import render

__all__ = ["CannotFit", "Facts", "NodeFacts", "ShardFacts", "hugepages_shortage", "render"]
