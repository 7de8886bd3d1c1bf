"""Names on this node: whether they are answered, from what, and whether pods ask here.

Call `examine.examine_names`; `findings` judges what it has seen, pure. Must not import `cluster`,
`firewall`, `installed`, `machine` or `pods`, doctor's other rooms.
"""
