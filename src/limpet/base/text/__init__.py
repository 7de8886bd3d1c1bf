"""Text that others wrote: which names are taken, and how any text is shown. Pure.

Call `escaping.escaped` wherever a person or a log sees it, `few.few` for a list that may be long,
`shared.share` for what comes again in thousands of objects. Imports nothing of Limpet but `bounds`.
"""
