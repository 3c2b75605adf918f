"""The files and the clients of the reference implementation, google/rappor."""
