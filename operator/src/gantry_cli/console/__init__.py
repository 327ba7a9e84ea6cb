"""`gantry console`: serves the consoles of groups on loopback, and a page that lists the groups.

    browser --- loopback_server --- group_console --- backend --- a sidecar of the group: a port-forward, or loopback
                               \\-- groups_page --- the directory of groups: a cluster, or folders of this machine

The proxy of a group logs in at a sidecar itself, so that the page keeps its session when another sidecar replaces one
that has failed. Where sidecars and groups are is a port: ``backend.SidecarSource`` and ``groups_page.GroupDirectory``.
"""
