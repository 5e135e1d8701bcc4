"""The outside world: effects that happen once, although the process that asks for them may die."""
