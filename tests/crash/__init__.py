"""Tests of the crash lab: real kills, and what is said of them."""
