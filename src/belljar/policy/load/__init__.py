"""From YAML to layers, and from layers to a resolved policy."""
