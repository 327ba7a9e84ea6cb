"""The parts of the benchmarks: the load generator, the servers, their memory, statistics, goals and tables."""
