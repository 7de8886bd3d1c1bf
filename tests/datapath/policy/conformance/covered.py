"""What the Kubernetes project's own end-to-end cases of network policies ask (its suite `netpol`),
case by case in our own words, and the rows that ask the same."""

from __future__ import annotations

COVERED: dict[str, tuple[str, ...]] = {
    # Whom a policy is for
    "nothing gets into a namespace that denies ingress": ("default deny of ingress",),
    "nothing gets in or out where both are denied": ("default deny of both",),
    "nothing gets out of a namespace that denies egress": ("default deny of egress",),
    "a policy that allows all": ("allow all of ingress", "allow all of egress"),
    "what one pod sends is denied": ("egress of one pod",),
    "one pod is opened where the namespace is closed": (
        "policies of one pod add up",
        "what one allows all, no other one closes",
    ),
    # Whom it lets in
    "pods of the namespace by label": ("pods of the namespace by label",),
    "pods of all namespaces": ("all namespaces",),
    "pods of one other namespace, by its label": ("a namespace by label",),
    "pods of a namespace by the label that it has of its name": ("a namespace by its name",),
    "pods by an expression": ("pods by an expression, of the namespace",),
    "namespaces by an expression": ("namespaces by an expression",),
    "pods here or whole namespaces": ("pods or namespaces",),
    "pods of those namespaces that have the label": ("pods and namespaces",),
    "several selectors of pods and of namespaces": ("several of each",),
    "any of several pods": (
        "pods by an expression, of the namespace",
        "rules of one policy add up",
    ),
    "one pod of another namespace": ("one pod of another namespace",),
    "pods of other namespaces are shut out": (
        "other namespaces are shut out",
        "all pods of the namespace",
    ),
    "egress to pods of another namespace, by both selectors": (
        "egress to one pod of another namespace",
    ),
    "egress to all namespaces that have not got a name": (
        "egress to all namespaces but one, by its name",
    ),
    # Ports
    "one port of several": ("a port by number", "another port", "a port for some"),
    "a port by its name": ("a port by name",),
    "a port by its name for one namespace": ("a port by name for a namespace",),
    "egress to a port by its name": ("egress to a port by name",),
    "a range of ports": ("a range of ports", "egress to a range of ports"),
    "any port of one protocol": ("a protocol without a port is all its ports",),
    # What adds up
    "policies of the same pods, one upon the other": (
        "policies of one pod add up",
        "policies come one by one, and go in another order",
    ),
    "egress that one policy allows to all, whatever others do": (
        "what one allows all, no other one closes, of egress",
    ),
    "ingress and egress in one policy": ("ingress and egress of one policy",),
    "a client that may not send, to a server that lets it in": (
        "what the client may not send, the server's policy does not open",
    ),
    "ingress and egress of a pod, each by itself": (
        "both ends have to allow it",
        "answers to what an isolated pod begins",
    ),
    # What changes
    "a policy that is changed": (
        "a policy comes, is changed, and goes",
        "allow all becomes deny all, and is opened again",
    ),
    "a policy that is deleted": ("a policy comes, is changed, and goes",),
    "a namespace that gets the label": ("a namespace gets a label and loses it",),
    "a pod that gets the label lets more in": ("a pod gets a label and loses it",),
    "a pod that gets a label is selected": ("a pod is selected by a label that it gets",),
    # Addresses
    "egress to a block": ("egress to a block",),
    "egress to a block but for an exception": ("egress to a block with an exception",),
    "an address that one block excepts and another one names": (
        "an exception that another block names",
        "an exception that another policy names",
    ),
    # Protocols
    "a policy for UDP opens nothing of TCP": ("UDP only",),
    "a policy for SCTP opens nothing of TCP, and closes as any other": ("SCTP only",),
    "denied by default, asked by UDP and by SCTP": ("default deny is of every protocol",),
    "ports and selectors, asked by UDP and by SCTP": (
        "several ports and protocols in one rule",
        "SCTP by name",
    ),
}
