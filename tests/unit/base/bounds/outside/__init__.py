"""Numbers that look like bounds and are no rows of the table: each with the reason, none beside."""
