"""The network of a run: the egress proxy, its check before the code starts, and published ports."""
