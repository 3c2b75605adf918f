"""Collector: an HTTP server that receives noisy reports, stores their sums and computes estimates.

Packages, from the bottom to the top:

    base         errors, problem documents, log, child processes, limits of requests
    ingest       check of an upload: key, parser, accepted parameters, stops
    storage      database: inbox of uploads, merge into counters, blocks, tokens, sessions
    releases     closed blocks that analysts may read, as counts
    operations   health, Prometheus, closing of blocks, retention, backup
    queries      computations of analysts in worker processes, and their stored results
    app          settings, input files, the running collector, the HTTP server of a process
    http         endpoints for devices, analysts and operators, with limits for each connection
    pages        dashboard for people with a browser
    cli          the commands of `rappor-server`
"""
