"""Work that leaves a jar: kept in the state directory, shown, merged and written to the host, all of it or nothing."""
