"""Images: built without a registry, scanned, loaded, listed and removed."""
