"""The schema's history: numbered, each step applied once and in order."""
