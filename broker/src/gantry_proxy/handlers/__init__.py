"""The calls of the service: a handler takes the core, the context of the call and the request, and returns the reply.

A handler raises ProxyError or ClientError for a refusal; the service writes it into the status of the reply.
"""

from gantry_speedups.modules import add_compiled

add_compiled(__name__, __path__)
