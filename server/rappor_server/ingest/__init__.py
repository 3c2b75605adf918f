"""What may be accepted: the registry, the parameters, the reports of an upload."""
