"""What the process that answers names says of itself: to a person, and as figures.

Take `answers`, which commands import too, and `metrics.Metrics`. Imports nothing of Limpet but
`base`.
"""
