"""Commands of the step "Plan": parameters, promises and papers, before anything is collected."""
