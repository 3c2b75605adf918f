"""Mechanisms by trust model for one yes-or-no question: who adds the noise, and the errors."""
