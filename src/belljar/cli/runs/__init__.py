"""Commands about runs, of whichever process."""
