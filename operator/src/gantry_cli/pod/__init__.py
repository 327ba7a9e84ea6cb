"""What runs as the first process of a container: it keeps one server running, and knows which member its pod is.

    supervisor    process 1: starts, restarts, forwards signals, reaps orphans
    member        its number and Services, from the pod's name; their addresses; whether its broker stands still
    asking        questions to the sidecar of the pod
    commands      `gantry pod broker`, `gantry pod nameserver`, `gantry pod sidecar`

Nothing here asks Kubernetes anything: a broker that crashes while no API server answers is back at once.
"""
