"""The keys of a policy file, and the kinds of their values."""
