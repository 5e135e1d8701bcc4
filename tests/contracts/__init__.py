"""One suite per port: what any implementation must do, whatever database lies under it."""
