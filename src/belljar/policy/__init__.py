"""What is allowed: pure data and pure decisions. Nothing here starts a process or opens a socket."""
