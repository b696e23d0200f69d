"""Parsers of what crosses the proxy. They open no socket."""
