"""What runs as the first process of a container: it keeps one server running, and knows which member its pod is.

    supervisor    process 1: starts, restarts, forwards signals, buries orphans
    pulse         whether a broker that lives does nothing any more
    member        pure: from the pod's name to the member's number and the Services it is reached by
    addresses     the addresses of these Services, remembered as long as the pod lives
    commands      `gantry pod broker`, `gantry pod nameserver`, `gantry pod sidecar`

Nothing here asks Kubernetes anything: a broker that crashes while no API server answers is back at once.
"""
