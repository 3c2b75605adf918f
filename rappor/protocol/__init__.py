"""The protocol: encodings, noise, fingerprints and wire format of devices and collectors."""
