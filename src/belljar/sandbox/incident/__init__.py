"""What happens to a run that must be looked into: quarantine, evidence, orders from other processes."""
