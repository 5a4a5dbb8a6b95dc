"""`/v1/pools`: resource scheduling over HTTP, one file for each kind of request.

`desk` does what the requests, and the pages, ask for; `access` says who may.
"""
