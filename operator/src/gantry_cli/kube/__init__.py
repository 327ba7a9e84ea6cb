"""Groups in a Kubernetes cluster, from a person's terminal: ``gantry status bg/orders``, ``kubectl gantry status``.

    cluster, faults   the API server, as this person may use it, and what goes wrong on the way in one line
    naming            what the objects of a group are called; the operator says the same
    inside            sidecars, asked inside of their pods
    look, screen      pods, Leases and sidecars put together: one document for programs, one screen for people
    ordering          orders, left as annotations, and waited for
    packing           everything that explains a group, in one file
    options           how a group is named, with the Tab key, too
    commands          explain, promote, fence, restore and bundle, for `gantry` and for `kubectl gantry`
    plugin            the same as a plugin of kubectl

What is done in a cluster is done by its operator. These commands look, and leave orders where the operator reads them.
They act with the rights of whoever types them, and no Secret is ever asked for.
"""
