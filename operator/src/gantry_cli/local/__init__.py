"""A ``BrokerGroup`` as processes of this machine: what ``gantry up`` runs, and what looks at it and orders it.

    state, lease            what is kept in the folder of a group
    plan, ports, buffers    where its members listen, and where their write buffers lie
    member                  one broker and its sidecar, each a ``ServerProcess``
    supervisor, acting      observe -> ``gantry_spec.decide`` -> act, again and again
    publishing, look        what the supervisor writes down of it, and how other processes read and show that
    group_run               the start and the stop of a group; `gantry up --single` is a group of one broker
    up, commands, promote   what a person types

The decisions are those of the operator in a cluster; only the two ends, looking and acting, belong to this machine.
"""
