"""Git on both sides of a jar: a repository of the jar's own on the way in, commits as a push on the way back.

The host's `.git` is never shown to a jar, and no file of the jar's `.git` is ever copied onto the host's.

- `making`: the repository that the jar gets, made of the host's refs, index and harmless settings
- `collecting`: refs and objects of the jar's repository, read as hostile data
- `checking`: a jar of its own in which git checks the new objects
- `judging`: which commits hold files that must not come back by themselves (pure)
- `receiving`: objects first, then refs under `refs/belljar/RUN`
- `moving`: the user's branches and index, after a yes
- `incoming`: the whole way back, for callers
"""
