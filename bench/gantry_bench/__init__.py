"""What `bench/send.py` is made of: the load generator, the servers, their memory, the sums and the table."""
