"""The keys of a policy that are about sessions: jars with an interpreter that lives for many steps."""

from __future__ import annotations

from belljar.policy.keys.key import Bound, Key, ValueKind

_WEEK = 7 * 24 * 3_600_000

SESSION_KEYS = (
    Key(
        "session.idle_s",
        ValueKind.SECONDS,
        "How long a session may be idle. Then its interpreter is ended, and its files are kept for `keep_s`.",
        1800,
        Bound.MOST,
        100,
        _WEEK,
        default=1800.0,
    ),
    Key(
        "session.max_age_s",
        ValueKind.SECONDS,
        "How long an interpreter of a session may live; `proc.timeout_ms` is for each of its steps.",
        28_800,
        Bound.MOST,
        100,
        _WEEK,
        default=28_800.0,
    ),
    Key(
        "session.max_sessions",
        ValueKind.COUNT,
        "How many sessions of this user may be open at once. One more ends the one that was idle for longest.",
        32,
        Bound.MOST,
        1,
        10_000,
        default=32,
    ),
    Key(
        "session.keep_s",
        ValueKind.SECONDS,
        "How long the files of a session are kept that was ended for being idle or old; 0 keeps none.",
        86_400,
        Bound.MOST,
        0,
        52 * _WEEK,
        default=86_400.0,
    ),
)
