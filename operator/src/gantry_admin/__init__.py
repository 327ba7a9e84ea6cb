"""The admin sidecar: one runs beside every broker and reports its state, even while the broker does not respond.

    status page (a file)  ----read--->  watch  --->  probes, status, durability, events, metrics   (HTTP)
    control socket (Unix) <---orders--  link   <---  role
    log and queue files   ----read--->  store_files  --->  log ranges, messages                   (HTTP, sendfile)

The invariant: **no answer about the state depends on the broker.** Data that only the broker can report is requested in
the background and answered from memory, with its age; topics and groups wait 60 ms at most for newer data. Only
requests that the broker itself has to execute wait longer, with a time limit: orders, resends, the search by key or by
a sender's message id, ``/v1/role/now``, and the broker's settings in a bundle. The sidecar uses the broker's status
page, control socket, port and files, and none of the broker's own code. ``docs/sidecar.md`` describes it for users.
"""
