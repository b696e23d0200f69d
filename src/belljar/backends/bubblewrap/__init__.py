"""The bubblewrap backend: host, launcher, stage, jar."""
