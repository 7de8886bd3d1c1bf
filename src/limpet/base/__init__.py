"""What every room uses: addresses, errors, settings, rate limits, timers, durable files.

Take `errors`, `addresses` or another piece by its file. Imports nothing of Limpet outside itself,
and no Linux interface.
"""
