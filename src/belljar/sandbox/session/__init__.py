"""Session: a jar with an interpreter that lives for many steps."""
