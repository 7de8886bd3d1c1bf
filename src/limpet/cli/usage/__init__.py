"""How commands explain themselves: groups, examples, one shape of help, the nearest word.

Take `commands.Command` and `commands.Noun`, of which every command is made; the rest are tables.
Must not import `cli.commands`.
"""
