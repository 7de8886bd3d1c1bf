"""Names: the process that answers them, beside the real CoreDNS."""
