"""A run as values: events, results, audit records, and what other processes see of it."""
