"""The lab itself: wires, NATs, delays, its commands and the demo."""
