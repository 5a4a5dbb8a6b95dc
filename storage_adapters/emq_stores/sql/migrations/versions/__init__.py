"""One module for each revision, named for it."""
