"""One file per phenomenon: what went wrong elsewhere, and that it does not here."""
