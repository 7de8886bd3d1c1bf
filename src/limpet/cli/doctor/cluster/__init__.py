"""The node in its cluster: its place there, peers, relays, tunnels.

`doctor.doctor` and `doctor.examine` call `membership`, `relays`, `tunnel` and `ways`. Must not
import `firewall`, `installed`, `machine`, `names` or `pods`, doctor's other rooms.
"""
