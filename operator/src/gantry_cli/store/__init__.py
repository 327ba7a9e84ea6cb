"""`gantry store`: the files of a store, without a broker."""
