"""Faults at random, many at once, and what must be true when they are over."""
