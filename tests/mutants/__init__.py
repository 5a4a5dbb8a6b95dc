"""Small realistic mistakes, each of which breaks a promise and must be caught by a test that is named with it.

`make mutants` plants them one after the other in a copy of the tree and runs the tests. See README.md beside this file.
"""
