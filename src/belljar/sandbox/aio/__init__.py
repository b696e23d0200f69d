"""The same for programs with an event loop, through anyio."""
