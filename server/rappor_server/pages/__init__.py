"""The dashboard: pages at the operators' address for people who sign in with a token."""
