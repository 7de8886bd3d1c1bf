"""Pod addresses: which one a pod gets, and the durable record of who holds which.

Call `ledger`. `allocation`, `index` and the codecs are pure. Imports nothing of Limpet but `base`.
"""
