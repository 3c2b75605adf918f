"""Tables, charts and pages of results.

The package computes nothing. It renders records of the packages below: `tables` has the one record
of a table with its three writers, `charts` the record of a chart, and `document` the page of both.
"""
