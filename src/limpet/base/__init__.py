"""What every room uses: addresses, errors, settings, rate limits, timers, durable files.

Imports nothing of Limpet outside itself, and no Linux interface.
"""
