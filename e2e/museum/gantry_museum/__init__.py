"""The museum: reported failures of other systems, each as a scenario that runs on Apache RocketMQ and on Gantry."""
