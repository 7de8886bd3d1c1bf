"""How each command is used: what to type, and what comes of it. A test parses every one."""

Example = tuple[str, str]

_NODE = {
    "status": (
        ("limpet status", "How this node is, and how full."),
        ("limpet status -o json", "The same, whole, for a program."),
        ("limpet status --watch", "Again and again, until Ctrl-C."),
        ("limpet status --wait --timeout 60", "Until pods can be started, for scripts."),
    ),
    "ping": (
        ("limpet ping crane-1", "By every way, until Ctrl-C; says by which each answer came."),
        ("limpet ping shop/web-0 -c 3", "A pod of any node, and its node."),
        ("limpet ping crane-1 --until-direct", "Until the pair needs no relay any more."),
    ),
    "netcheck": (
        ("limpet netcheck --controller cloud.example:7470", "Before this machine joins there."),
        (
            "limpet netcheck --relay 203.0.113.9 --relay 198.51.100.9",
            "What the NAT does, by two relays.",
        ),
        ("limpet netcheck", "On a node that has joined: by those that it knows."),
    ),
    "path": (
        ("limpet path default/web-0 10.244.9.7", "Which way packets take, there and back."),
        ("limpet path 10.244.7.2 10.244.9.7 --probe", "Ask the other node too, with round trips."),
        ("limpet path default/a default/b --port 443", "Also whether policies let it in."),
    ),
    "events": (
        ("limpet events", "What changed on this node, the newest last; also with a dead agent."),
        ("limpet events node-2 --since 6h", "What happened between this node and another."),
        ("limpet events --follow", "Go on with what happens."),
        ("limpet events --cluster", "What the controller remembers, and who did it."),
    ),
    "peer": (("limpet peer list", "How each other node is reached."),),
    "peer list": (
        ("limpet peer list", "By which rung each other node is reached, or why it is not."),
        ("limpet peer list -o wide", "With segments and uids."),
    ),
    "ipam": (("limpet ipam list", "Which pod holds which address."),),
    "ipam list": (
        ("limpet ipam list", "Which pod holds which address."),
        ("limpet ipam list --network cbr0", "The addresses of one network alone."),
    ),
    "ipam check": (("limpet ipam check", "Addresses that leaked; exit code 1 if there are any."),),
    "ipam repair": (("limpet ipam repair", "Release addresses that leaked."),),
    "ipam release": (
        ("limpet ipam release default/web-0", "Keep no address for that pod any more."),
        ("limpet ipam release 10.244.7.9 --network cbr0", "The same, by address."),
    ),
    "service": (("limpet service show default/web", "Which endpoints are in rotation here."),),
    "service list": (("limpet service list", "Every Service, as this node serves it."),),
    "service show": (
        ("limpet service show default/web", "Its endpoints, and why one is out of rotation."),
        ("limpet service show 10.96.0.10", "The same, by cluster address."),
    ),
    "policy": (("limpet policy show default/web-0", "What a pod may receive and send."),),
    "policy apply": (
        ("limpet policy apply deny-all.yaml", "For pods of this node."),
        ("limpet policy apply --cluster deny-all.yaml", "For pods of all nodes."),
    ),
    "policy delete": (("limpet policy delete default/deny-all", "Take it out of force."),),
    "policy list": (("limpet policy list", "Policies, and how many pods each selects."),),
    "policy show": (("limpet policy show default/web-0", "By which policies, and to whom."),),
    "dns": (("limpet dns query web.default.svc.cluster.local", "What pods are answered."),),
    "dns query": (
        ("limpet dns query web.default.svc.cluster.local", "The answer, and where it is from."),
        ("limpet dns query web.default.svc.cluster.local AAAA", "Its IPv6 addresses."),
    ),
    "dns status": (("limpet dns status", "Upstreams, and how many questions so far."),),
    "dns serve": (("limpet dns serve --config /etc/limpet/agent.toml", "What systemd runs."),),
    "dns ready": (("limpet dns ready --any", "What a kubelet's probe runs."),),
}
_DIAGNOSIS = {
    "doctor": (
        ("sudo limpet doctor", "Everything, the worst first."),
        ("sudo limpet doctor --fix", "Mend what is safe to mend, after saying what."),
        ("sudo limpet doctor --node edge-7", "Look on another node, by the API server."),
    ),
    "trace": (
        ("sudo limpet trace default/web-0 10.244.9.7", "A ping, and where it stops."),
        ("sudo limpet trace default/a default/b --port 443", "A connection to that port."),
    ),
    "bundle": (
        (
            "limpet bundle limpet-0.2.0-bundle-amd64.tar harbour.tar --controller 192.0.2.10:7470",
            "For machines that reach that controller, and no internet.",
        ),
        (
            "limpet bundle limpet-0.2.0-bundle-amd64.tar farm.tar --settings farm.toml",
            "For machines that are to have these settings.",
        ),
    ),
    "bugreport": (
        ("sudo limpet bugreport", "An archive in this folder, and what is in it."),
        ("sudo limpet bugreport --file /tmp/report.tar.gz", "The same, written to that file."),
    ),
    "help": (
        ("limpet help", "The pages that there are."),
        ("limpet help install", "One of the pages."),
    ),
    "connectivity": (("limpet connectivity test", "Whether pods reach pods, tried."),),
    "connectivity test": (
        ("limpet connectivity test", "On all nodes that are ready."),
        (
            "limpet connectivity test --nodes edge-1,edge-2 --outside 192.0.2.7:443",
            "On two nodes, and from both to an address outside.",
        ),
        ("limpet connectivity test --services --policies", "Services, names and policies too."),
    ),
    "connectivity pod": (("limpet connectivity pod", "What the pods of a test run."),),
}
_PAGE = {
    "ui": (
        ("sudo limpet ui", "Print a link to a page that shows the network as this node sees it."),
        ("sudo limpet ui --controller --listen 192.0.2.10:7480", "The same of the whole cluster."),
    ),
    "ui token": (("sudo limpet ui token list", "Who may look at the page in the cloud."),),
    "ui token create": (
        ("sudo limpet ui token create ann", "Who has it may look, for 30 days."),
        (
            "sudo limpet ui token create bob --write --ttl 12h",
            "Who has it may also change things, for half a day.",
        ),
    ),
    "ui token list": (("sudo limpet ui token list", "Whose there are, and until when."),),
    "ui token remove": (("sudo limpet ui token remove ann", "Who came by it is out at once."),),
}

_CLUSTER = {
    "node": (
        ("limpet node list", "The nodes, and how long ago each was heard."),
        ("limpet node label edge-7 site=harbour", "For selectors of communities."),
    ),
    "node list": (
        ("limpet node list", "Those that are members."),
        ("limpet node list --all -o wide", "Removed ones too, with labels and uids."),
    ),
    "node show": (("limpet node show edge-7", "All that is known of it."),),
    "node remove": (("limpet node remove edge-7", "It reaches nobody any more, for ever."),),
    "node replace": (
        ("limpet node replace edge-7", "The next edge-7 that joins gets its addresses."),
        ("limpet node replace edge-7 --cancel", "The next edge-7 gets addresses of its own."),
    ),
    "node label": (
        ("limpet node label edge-7 site=harbour", "Set a label."),
        ("limpet node label edge-7 site-", "Take the label away."),
    ),
    "node set": (
        ("limpet node set hub-1 --add-role relay", "Others may be relayed by it."),
        ("limpet node set gate --behind 10.20.0.0/16", "Another network is reached through it."),
    ),
    "community": (
        ("limpet community create harbour crane-1 crane-2", "These two may talk."),
        ("limpet community show harbour", "Who is in it, and why."),
    ),
    "community create": (
        ("limpet community create harbour crane-1 crane-2", "A community of two nodes."),
        (
            "limpet community create harbour --selector site=harbour",
            "A community of all nodes with that label.",
        ),
    ),
    "community add": (("limpet community add harbour buoy", "Another node is in it."),),
    "community remove": (
        ("limpet community remove harbour buoy", "A node is in it no longer."),
        ("limpet community remove harbour --all", "The community itself."),
    ),
    "community list": (("limpet community list", "All communities."),),
    "community show": (("limpet community show harbour", "Who is in it, and why."),),
    "network": (("limpet network show", "Address space, encryption, the cluster's key."),),
    "network show": (("limpet network show", "Address space, encryption, the cluster's key."),),
    "network set": (
        ("limpet network set --default-community none", "Nodes of the edge share nothing."),
        ("limpet network set --encryption all", "Encrypt within a site too."),
    ),
    "segment": (("limpet segment list", "Who holds which addresses."),),
    "segment list": (("limpet segment list", "Which are held, and which rest."),),
    "pod": (("limpet pod list --node edge-7", "Its pods and their addresses."),),
    "pod list": (
        ("limpet pod list", "Every pod of the cluster, and whom addresses are kept for."),
        ("limpet pod list --node edge-7", "The pods of one node."),
    ),
    "pod label": (("limpet pod label default/web-0 app=web", "For policies to select."),),
    "token": (("limpet token create", "Lets one node in, once, within a day."),),
    "token create": (
        ("limpet token create", "For a node of the edge."),
        ("limpet token create --name crane-7", "For a machine that may join as crane-7 alone."),
        ("limpet token create --ttl 1h --role cloud --label site=hq", "For a node of the cloud."),
    ),
    "token list": (
        ("limpet token list", "The tokens by which somebody may join."),
        (
            "limpet token list --all -o wide",
            "Also which node was let in by which, and who made it.",
        ),
    ),
    "token remove": (
        ("limpet token remove 5f2c9a10b7", "Who came by it does not get in."),
        ("limpet token remove --all", "After a theft: nobody joins by a token of before."),
    ),
}
_SET_UP = {
    "install": (
        ("sudo limpet install --segment 10.244.7.0/24", "A node on its own."),
        (
            "sudo limpet install --token-file - --controller 203.0.113.5:7470",
            "A node of a cluster; the token is asked for.",
        ),
        ("sudo limpet install --dry-run", "Look at what is there, and change nothing."),
    ),
    "uninstall": (
        ("sudo limpet uninstall", "The node stays a member of its cluster."),
        ("sudo limpet uninstall --purge", "Nothing stays."),
    ),
    "join": (
        (
            "sudo limpet join --controller 203.0.113.5:7470 --token-file token.txt",
            "With what `limpet token create` printed.",
        ),
        (
            "sudo limpet join --controller 198.51.100.5:7470",
            "A node that has joined asks its controller there from now on.",
        ),
    ),
    "completion": (
        (
            "limpet completion bash >/etc/bash_completion.d/limpet",
            "Complete for all users; packages do it.",
        ),
        ("source <(limpet completion bash)", "Complete in this shell alone."),
    ),
}
_LAB = {
    "lab": (
        ("sudo limpet lab demo", "What Limpet does, in under a minute."),
        ("sudo limpet lab up", "A world of your own."),
    ),
    "lab up": (
        ("sudo limpet lab up", "Two sites and a cloud."),
        ("sudo limpet lab up nat-matrix", "Every kind of NAT beside each other."),
    ),
    "lab demo": (("sudo limpet lab demo", "Three sites, and a cloud that goes away."),),
    "lab status": (
        ("sudo limpet lab status --ping", "Who reaches whom."),
        ("sudo limpet lab status --svg world.svg", "As a picture."),
    ),
    "lab fault": (
        ("sudo limpet lab fault cut cloud", "The cloud is gone."),
        ("sudo limpet lab fault cut cloud --restore", "It is back."),
        ("sudo limpet lab fault reboot all", "Every node starts anew."),
    ),
    "lab shell": (
        ("sudo limpet lab shell crane-1", "A shell on that node."),
        ("sudo limpet lab shell crane-1 -- limpet status", "One command there."),
    ),
    "lab down": (("sudo limpet lab down", "Everything goes."),),
}
_PROCESSES = {
    "agent": (("limpet agent --config /etc/limpet/agent.toml", "What systemd runs."),),
    "controller": (
        ("sudo limpet controller install --pod-cidr 10.64.0.0/12", "A service of this machine."),
        ("limpet controller backup /root/limpet.db", "With all keys of the cluster."),
    ),
    "controller install": (
        ("sudo limpet controller install --pod-cidr 10.64.0.0/12", "A cluster with IPv4 alone."),
        (
            "sudo limpet controller install --pod-cidr 10.64.0.0/12 --pod-cidr fd00:64::/40",
            "A cluster with IPv4 and IPv6.",
        ),
    ),
    "controller uninstall": (("sudo limpet controller uninstall", "The database stays."),),
    "controller backup": (("limpet controller backup /root/limpet.db", "Also while it runs."),),
    "controller restore": (("limpet controller restore /root/limpet.db", "While it is stopped."),),
    "controller rotate-key": (
        ("limpet controller rotate-key", "After a theft of the key."),
        ("limpet controller rotate-key --force", "Where the thief holds a recovery open."),
    ),
    "controller recovery": (
        ("limpet controller recovery", "Which nodes a restored one waits for."),
        ("limpet controller recovery --resume", "Grant what was never used meanwhile."),
    ),
}

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "": (
        ("sudo limpet lab demo", "What Limpet does, on this machine, in under a minute."),
        ("limpet status", "How this node is."),
        ("sudo limpet doctor", "What is wrong with it."),
    ),
    **_NODE,
    **_DIAGNOSIS,
    **_PAGE,
    **_CLUSTER,
    **_SET_UP,
    **_LAB,
    **_PROCESSES,
}
"""By the command's words without `limpet`."""
