"""The page in a real browser: run by `make test-ui`."""
