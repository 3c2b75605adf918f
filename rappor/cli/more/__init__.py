"""Commands outside of the steps: comparisons of trust, SQL, and files of google/rappor."""
