"""Dashboard: pages of metrics and results for people who are signed in with a read token.

The setting `pages` switches the dashboard on. It is at the admin address, below /pages.

- page_routes: the application, its routes, headers and cookies
- sessions: signing in and out, and the checks before every page and every form
- forms: parser of forms and query strings, and the check against forms of other sites
- metric_pages: list of all metrics, and the pages Ask and Health of a metric
- result_pages: results by their URLs
- rendering: templates and static files
"""
