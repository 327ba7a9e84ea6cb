"""The role of this broker in its shard: changes of role, replication, and the tables that slaves copy."""
