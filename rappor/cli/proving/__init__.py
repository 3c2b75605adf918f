"""Commands of the step "Prove": audits of encoders and clients."""
