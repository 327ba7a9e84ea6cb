"""The admin sidecar: one runs beside every broker and reports its state, even while the broker does not respond.

    status page (a file)  ----read--->  watch  --->  probes, status, durability, events, metrics   (HTTP)
    control socket (Unix) <---orders--  link   <---  role
    log and queue files   ----read--->  files  --->  log ranges                                   (HTTP, sendfile)

The invariant: **no answer waits for the broker.** Data that only the broker can report is requested in the background
and answered from memory, with its age. The sidecar uses the broker's status page, control socket, port and files, and
none of the broker's own code. ``docs/sidecar.md`` describes it for users.
"""
