"""The proxy's own process."""
