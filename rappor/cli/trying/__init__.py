"""Commands of the step "Try": simulated devices, and the report of a value."""
