"""Commands that run code, and what tells whether they can."""
