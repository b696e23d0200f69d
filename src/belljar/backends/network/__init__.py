"""A jar's way out: a second network namespace, joined to the jar's, in which the egress proxy's listeners are."""
