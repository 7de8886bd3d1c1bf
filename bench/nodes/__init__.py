"""Nodes under test: namespaces with an uplink, their pods and plugins, what they cost."""
