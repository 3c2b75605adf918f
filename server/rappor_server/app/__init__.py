"""One collector process: settings, input files, start and end of all parts, HTTP server.

- settings: values of flags, environment and TOML file
- input_files: texts of the files that the settings name
- collector: the running collector with database, queue of uploads, workers, background tasks
- serving: the HTTP server around the collector with sockets, TLS, signals
"""
