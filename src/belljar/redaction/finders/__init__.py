"""What finds secrets and personal data: one file for each kind."""
