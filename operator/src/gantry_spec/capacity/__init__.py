"""The capacity that a group needs, and that the nodes of a cluster have, as the scheduler counts it. Pure.

    resources      what a pod requests: containers, init containers, native sidecars, overhead, resizes
    constraints    where a pod may run at all: node selectors, taints, affinities between pods, topology spread
    nodes          the nodes with their present pods: why a pod does not fit, and which node is nearest
    needs          what the rendered objects of a group need: pods and volumes, with totals
    plan           the pods of a group placed one after another: whether all fit, and what binds

The result is an estimate, and the scheduler decides. It has more rules than these: ports of the host, limits of
attached volumes, preemption, and plugins of its own. What a cluster has is given as plain objects of its API.
"""
