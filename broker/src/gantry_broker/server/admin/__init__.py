"""Administration and periodic tasks of the broker: topics, accounts, status, retention and the scrubber."""
