"""The SQL database under the catalog and the checkpoints: one small engine, its schema, its statements.

`Database` runs plain synchronous functions, each in one transaction, on threads of its own. SQLite and PostgreSQL
share every table; where their SQL differs, each has its own file under `sql/`.
"""

from emq.database.database import Database
from emq.database.schema import CATALOG, Schema

__all__ = ["CATALOG", "Database", "Schema"]
