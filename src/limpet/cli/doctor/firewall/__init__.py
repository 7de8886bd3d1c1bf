"""Others' firewall rules that stop pods, or what nodes send each other.

`examine_firewall` gives the findings; `trial` sends packets through a copy of the rules. Nothing of
it touches the machine's own rules, links or connections.
"""
