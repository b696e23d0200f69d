"""What agents use: the tools, for the Claude Agent SDK, over MCP, and by themselves."""
