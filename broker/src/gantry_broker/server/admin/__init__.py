"""Administration and periodic tasks: topics, accounts, status, retention and the scrubber."""
