"""Events and what is written down about them."""
