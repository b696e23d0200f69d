"""The system call filter of a jar, and the supervisor's end of what it reports.

`rules` and `conditions` say what is allowed, `filters` builds the programs, `install` puts one into a process and
`notify` hears from it. See `filters` for how the two programs of a jar fit together.
"""
