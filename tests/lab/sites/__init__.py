"""Sites behind NATs: every kind of pair, what befalls them, IPsec, idle pairs."""
