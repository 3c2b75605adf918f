"""The collector as a whole: settings, its parts in order, and the server that listens."""
