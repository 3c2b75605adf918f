"""Tables, charts and pages of results.

The package renders typed records of other packages, such as estimates or plans, and computes no
statistics. `tables` contains the record of a table with its three writers (text, HTML, JSON),
`charts` the record of a chart, and `document` the page that contains tables and charts.
"""
