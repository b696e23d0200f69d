"""Secrets and personal data become stable tokens before anything is logged, stored or returned."""
