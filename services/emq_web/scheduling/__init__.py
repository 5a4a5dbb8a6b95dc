"""`/v1/pools`: resource scheduling over HTTP, one file for each kind of request.

`desk` does the work of requests and pages; `access` checks the rights.
"""
