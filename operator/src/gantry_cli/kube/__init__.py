"""Groups in a Kubernetes cluster, from the command line: ``gantry status bg/orders``, ``kubectl gantry status``.

    cluster, api_errors        requests to the API server with the user's rights, and their failures as one line
    naming                     the kinds, names and labels of a group's objects, as the operator writes them
    sidecars                   requests to sidecars, made inside their pods
    group_observer, screen     pods, Leases and sidecars combined: a document for programs, a screen for people
    documents                  the types of these documents
    cluster_orders             orders, given as annotations, and the wait for their result
    cluster_bundle             everything needed to diagnose a group, in one file
    capacity, cluster_capacity what a group needs, and what the nodes of a cluster can take
    options                    the options that name a group, and their shell completion
    commands                   explain, promote, fence, restore and bundle, for `gantry` and for `kubectl gantry`
    plugin                     the same and `status`, as a plugin of kubectl

The operator makes all changes in a cluster. These commands observe, and give orders as annotations, which the operator
reads. They act with the rights of the user, and never read a Secret.
"""
