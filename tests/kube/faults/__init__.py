"""What a cluster goes through: objects lost, nonsense, wrong clocks, refusals, a day of it all."""
