"""The machine under Limpet: what its kernel can do, its settings, its links, routes and rules.

`doctor.doctor` and `doctor.examine` call `features`, `links`, `network_daemons`, `planned`,
`settings`, `storage` and `traps`. Must not import `cluster`, `firewall`, `installed`, `names` or
`pods`, doctor's other rooms.
"""
