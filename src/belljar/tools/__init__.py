"""Tools that models call: the toolbox, the MCP server, the Claude Agent SDK, the Bash tool."""
