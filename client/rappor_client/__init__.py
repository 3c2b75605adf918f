"""The device: what a host program embeds."""
