"""What tells a person of a network at fault: netcheck, ping, pairs."""
