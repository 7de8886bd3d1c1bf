"""Completion in bash, zsh and fish.

Call `shells.completion_script`, which writes as one script for a shell what `commands` reads off
the commands; `names` answers what such a script asks while somebody types: it loads no command.
Must not import `cli.commands`.
"""
