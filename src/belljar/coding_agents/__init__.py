"""Agents: belljar as their tool (the Claude Agent SDK, MCP), and belljar around them."""
