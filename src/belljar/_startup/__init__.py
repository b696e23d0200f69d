"""The start-up kit: small replacements for slow parts of the standard library, and the bytecode cache."""
