"""The supervisor of a session and its interpreter."""
