"""Commands of the step "Plan": parameters, privacy losses, and documents for people."""
