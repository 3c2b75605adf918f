"""One collector process: settings, input files, start and end of all parts, HTTP server."""
