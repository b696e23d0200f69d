"""The part of `signal` that ends processes, under the same names.

The standard module makes enumerations of all signals when it is imported, which takes a millisecond of every start. To
mypy this *is* the standard one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403
