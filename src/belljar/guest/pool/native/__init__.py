"""What is not Python in a jar."""
