"""Output and key handling at a terminal."""
