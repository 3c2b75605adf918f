"""Commands of the step "Read": from counts to estimates."""
