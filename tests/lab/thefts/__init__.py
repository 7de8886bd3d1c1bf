"""What docs/security.md says to do after a theft, done in a world."""
