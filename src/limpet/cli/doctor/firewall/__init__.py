"""Others' firewall rules that stop pods, or what nodes send each other.

Call `examine.examine_firewall`; `trial` sends packets through a copy of the rules. Nothing of it
touches the machine's own rules, links or connections. Must not import `cluster`, `installed`,
`machine`, `names` or `pods`, doctor's other rooms.
"""
