"""Decisions about names, addresses, requests, credentials and budgets. Pure."""
