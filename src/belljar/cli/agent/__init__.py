"""Commands that run coding agents, and bring back their work."""
