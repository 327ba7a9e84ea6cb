"""The operator: it runs the pods of each ``BrokerGroup``, and moves the master role safely.

``objects`` renders the desired objects as values; ``gantry_spec.decide`` decides what to do next. All communication
with Kubernetes and with sidecars is in this package, and in none of the packages that it imports.
"""
