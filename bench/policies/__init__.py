"""What it costs that pods are held to policies and to their addresses."""
