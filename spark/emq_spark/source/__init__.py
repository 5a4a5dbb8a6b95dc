"""EMQ as a data source of Spark."""
