"""Secrets and personal data become stable tokens before anything is logged, stored or returned."""

from __future__ import annotations

from belljar.audit.redaction.redactor import Redactor
from belljar.audit.redaction.stream import ByteStreamRedactor, StreamRedactor

__all__ = ["ByteStreamRedactor", "Redactor", "StreamRedactor"]
