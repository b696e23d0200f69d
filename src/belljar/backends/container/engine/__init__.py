"""The container engine: its commands, its faults, its known escapes, and what is left behind."""
