"""The stage: the process that holds one Sandbox's mounts, and starts and watches its jars."""
