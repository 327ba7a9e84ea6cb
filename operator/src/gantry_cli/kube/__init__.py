"""Groups in a Kubernetes cluster, from a person's terminal: ``gantry status bg/orders``, ``kubectl gantry status``.

    kinds, cluster    the API server, as this person may use it, and what goes wrong on the way in one line
    naming            what pods and objects of a group are called; the operator says the same
    inside            sidecars, asked inside of their pods
    seen              pods, Leases and sidecars put together into what ``gantry_spec`` explains
    look, screen      one document for programs, one screen for people
    commands          status, explain, promote, fence and bundle, whoever has called them
    plugin            the same as a plugin of kubectl

What is done in a cluster is done by its operator. These commands look, and leave orders where the operator reads them.
They act with the rights of whoever types them, and no Secret is ever asked for.
"""
