"""flannel beside Limpet: call `beside`; `lease` reads and makes its annotations (pure), `nodes` are
its nodes as grants and presences. Must not import the API or the commands.
"""
