"""The files of the reference implementation, google/rappor, and the noise of its clients."""
