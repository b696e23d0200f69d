"""What carries a connection that may pass, and checks each request in it."""
