"""Kills, storms and foreign programs: run by `make test-storms`."""
