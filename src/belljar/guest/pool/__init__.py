"""The zygote of a pool, and the jars that are cloned from it."""
