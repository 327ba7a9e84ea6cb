"""The first process of a container: it keeps one server running, and derives its member from the name of the pod.

    supervisor       process 1: starts, restarts, forwards signals, reaps orphans
    member           the member's number and Services; their addresses; the watchdog of its broker
    sidecar_query    requests to the sidecar of the pod
    commands         `gantry pod broker`, `gantry pod nameserver`, `gantry pod sidecar`, `gantry pod get`

This package never calls the API server: a broker that crashes while the API server is unavailable restarts at once.
"""
