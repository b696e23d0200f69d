"""Sandbox and its runs."""
