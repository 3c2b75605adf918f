"""The dashboard: pages of metrics and results for people who are signed in with a read token."""
