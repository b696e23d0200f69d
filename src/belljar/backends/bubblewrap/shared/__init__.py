"""What several of the processes use: messages, plans, paths and the event loop."""
