"""Frozen values that the rest of Limpet speaks in. No I/O, no clock, no randomness."""
