"""Secrets and personal data become stable tokens before anything is logged, stored or returned."""

from __future__ import annotations

from belljar.redaction.redactor import Redactor
from belljar.redaction.stream import ByteStreamRedactor, StreamRedactor

__all__ = ["ByteStreamRedactor", "Redactor", "StreamRedactor"]
