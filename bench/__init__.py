"""What Limpet costs, beside the reference CNI plugins in the same run: `python -m bench`."""
