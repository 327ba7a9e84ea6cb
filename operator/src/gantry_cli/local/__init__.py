"""A ``BrokerGroup`` as processes of this machine: what ``gantry up`` runs, and what looks at it and orders it.

    state, lease_file     what is kept in the folder of a group
    port_plan, buffers    where its members listen, and where their write buffers lie
    child, member         the processes
    looking, acting       observe -> ``gantry_spec.decide`` -> act, again and again, by ``supervisor``
    up                    the start, the stop, and what a person sees of it

The decisions are those of the operator in a cluster; only the two ends, looking and acting, belong to this machine.
"""
