"""Packages of Debian and Fedora, built and installed: run by `make test-packages`."""
