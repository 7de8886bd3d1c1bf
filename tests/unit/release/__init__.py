"""What makes a release: `release`."""
