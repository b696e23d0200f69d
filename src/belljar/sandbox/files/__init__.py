"""Files that leave a jar: judged, compared, copied, applied; and snapshots."""
