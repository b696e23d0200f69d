"""The containers of one Sandbox: plan, volume, gate, runs and their removal."""
