"""The outside world: what happens once there, although we may have to try more than once."""
