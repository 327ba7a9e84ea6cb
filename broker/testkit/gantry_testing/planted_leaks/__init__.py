"""The folder that is put on the path of a process which leaks on purpose; see ``gantry_testing.leaks``."""
