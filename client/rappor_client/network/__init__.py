"""Sending uploads: the interface of a transport, and the default transport over HTTPS."""
