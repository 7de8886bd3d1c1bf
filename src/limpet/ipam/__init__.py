"""Pod addresses on disk: who holds which, and for which pod each is kept."""
