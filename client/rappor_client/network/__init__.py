"""The network as an argument, and HTTP."""
