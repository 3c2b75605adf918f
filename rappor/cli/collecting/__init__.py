"""Commands of the step "Collect": from reports to counts."""
