"""How code is confined: one package or file for each way."""
