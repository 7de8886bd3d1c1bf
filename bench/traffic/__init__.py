"""What is carried from pod to pod: one flow, many in turns, and iperf3's."""
