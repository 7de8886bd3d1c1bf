"""What is made for aarch64, on that machine as QEMU emulates it."""
