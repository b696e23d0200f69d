"""The launcher: the process that starts every stage, and outlives the host by a moment."""
