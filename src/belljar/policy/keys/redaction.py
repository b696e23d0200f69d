"""The keys of a policy that are about redaction: what becomes a token, where, and what is let through."""

from __future__ import annotations

from belljar.policy.keys.key import Bound, Key, ValueKind

SECRETS = ("private_key", "token", "jwt", "url_password", "named_secret")
PERSONAL = ("email", "phone", "card", "iban", "national_id", "ip", "name")
REDACTABLE = ("secrets", "personal", *SECRETS, *PERSONAL)
PLACES = ("log", "result")

DEFAULT_KINDS = ("secrets", "personal")
DEFAULT_PLACES = ("log",)
"""What `logging.redact_pii` alone means."""

REDACTION_KEYS = (
    Key(
        "logging.redact_pii",
        ValueKind.BOOLEAN,
        "Whether secrets and personal data are replaced by tokens; the next keys say which, where, and which not.",
        example=True,
        bound=Bound.ON,
    ),
    Key(
        "logging.redact",
        ValueKind.CHOICES,
        "What is replaced: kinds, or the groups `secrets` and `personal`. Names only where a detector is installed.",
        list(DEFAULT_KINDS),
        Bound.ADDED,
        choices=REDACTABLE,
    ),
    Key(
        "logging.redact_in",
        ValueKind.CHOICES,
        "Where: in what is logged and stored (`log`), and in what is returned to the caller (`result`).",
        list(DEFAULT_PLACES),
        Bound.ADDED,
        choices=PLACES,
    ),
    Key(
        "logging.let_through",
        ValueKind.PATTERNS,
        "What is not replaced: values, patterns like `*@example.com`, domains, networks like `10.0.0.0/8`.",
        ["*@example.com", "10.0.0.0/8"],
        Bound.SUBSET,
    ),
)
