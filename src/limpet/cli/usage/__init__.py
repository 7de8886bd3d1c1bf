"""How commands explain themselves: groups, examples, one shape of help, the nearest word.

`commands` has the classes that every command and noun is made of; the rest are tables. Imports no
command.
"""
