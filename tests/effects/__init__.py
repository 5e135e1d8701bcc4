"""The gateway, its states and its doubts."""
