"""Completion in bash, zsh and fish.

`commands` reads what there is to complete off the commands, `shells` writes it as one script for a
shell; `names` answers what such a script asks while somebody types: it loads no command.
"""
