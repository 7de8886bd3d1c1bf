"""Names on this node: whether they are answered, from what, and whether pods ask here.

`examine.examine_names` gives the findings; `findings` judges what it has seen, pure.
"""
