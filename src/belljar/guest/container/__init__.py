"""The gate of a container and the server of its volume."""
