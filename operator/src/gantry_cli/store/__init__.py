"""The commands `gantry store`: inspect, verify and repair the files of a store without a broker."""
