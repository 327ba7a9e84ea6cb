"""A ``BrokerGroup`` as processes of this machine: what ``gantry up`` runs, and the commands to observe and control it.

    state, lease                   the files in the folder of a group
    plan, ports, buffers           the addresses of its members, and the places of their write buffers
    access                         its accounts and certificates, and requests to its sidecars
    member                         one broker and its sidecar, each a ``ServerProcess``
    supervisor, action_executor    the loop: observe -> ``gantry_spec.decide`` -> execute
    manifest_changes, topics       the changes that a new manifest makes to members, topics and surplus shards
    publishing, group_status       the status that the supervisor writes, and how other processes read and show it
    group_run                      the start and the stop of a group; `gantry up --single` is a group of one broker
    running                        the lock, the signals and the output of a process that runs until a signal
    up, commands, promote, bundle  the commands

The decisions are those of the operator in a cluster; only observing and executing are specific to one machine.
"""
