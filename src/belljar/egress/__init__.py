"""The allowlist proxy: what a jar may reach, decided by small pure steps and carried out by one process outside it."""
