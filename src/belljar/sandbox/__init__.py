"""Sandbox: one policy, one workspace, any number of runs."""
