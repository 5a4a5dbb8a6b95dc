"""Topics: their settings, the split of their capacity into groups, and the catalog that keeps them."""
