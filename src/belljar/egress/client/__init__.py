"""The host's side of the proxy."""
