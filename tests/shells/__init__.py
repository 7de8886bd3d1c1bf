"""Completion in shells that Debian has as packages; `make test-shells` runs it."""
