"""Queries of analysts: computed in worker processes, and stored as files.

- query: base class of a query, its key, and the checks of days and candidates
- estimates, page_queries: the queries of programs and of pages
- counts: tasks that read counts and need no estimates
- results: which query is in progress, done or failed
- result_files: finished results on the disk
- candidate_lists, candidate_sources: where the candidates of a query come from
- worker: pool of processes with limits of time and memory
"""
