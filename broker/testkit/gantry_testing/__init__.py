"""Twins of the ports that fail on purpose, and small worlds to use them in. For tests; never imported by the broker."""
