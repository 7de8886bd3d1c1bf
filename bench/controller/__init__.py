"""The controller under load: of its nodes, of hostile members and of strangers."""
