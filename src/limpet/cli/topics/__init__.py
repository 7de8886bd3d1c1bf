"""The documentation on the node: pages by name, sections, and what is nearest to a typo.

Call `pages.find_docs` and `pages.look_up`. Imports nothing of `cli` but `doctor.catalogue`, whose
findings are topics too.
"""
