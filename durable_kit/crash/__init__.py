"""Breaking things on purpose: real processes, killed at a named point, and what is left of them."""
