"""The dashboard for operators and the portal for tenants: the same pages, scoped by the key that signed in.

The server makes the pages (Jinja2); htmx renews parts of them, ECharts draws the charts from options that Python
builds, and one script of our own joins the two. Nothing comes from another server, and no page has a script or style
within its text. The pages keep nothing in memory, so any number of workers may serve them.
"""
