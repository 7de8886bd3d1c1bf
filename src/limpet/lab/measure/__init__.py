"""What a world does: who reaches whom, by which path, how long nothing came.

Call `matrix.measure_until`, `paths.seen_paths` and `report.picture`. Asked from the kernel and the
agents, never remembered. Imports nothing of Limpet but `base` and `lab`.
"""
