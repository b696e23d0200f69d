"""The part of the backend that runs in the user's own process."""
