"""Privacy budget of a device: reserved nats, memoized scopes, and admission of reports."""
