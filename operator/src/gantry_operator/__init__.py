"""The operator: it makes of a ``BrokerGroup`` running pods, and moves the master role safely.

``objects`` says what should exist, as values; what to do next is decided in ``gantry_spec.decide``. Everything that
talks to Kubernetes or to sidecars is here and nowhere below.
"""
