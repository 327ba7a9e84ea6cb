"""Transactions: messages that are stored at once, and become visible when their producer commits them."""
