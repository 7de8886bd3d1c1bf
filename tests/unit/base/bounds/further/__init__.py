"""Further probes of rows that the product goes by in several places, each of a place that the
row's first probe does not go by: `scripts/mutate-bounds` finds such places."""
