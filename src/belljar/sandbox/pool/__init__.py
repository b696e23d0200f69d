"""Pool: code in fresh jars that have been waiting for it."""
