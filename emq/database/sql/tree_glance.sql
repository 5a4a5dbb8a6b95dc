-- Return every session, each with the number of the tree's last change. One statement sees one state of the database.
SELECT (SELECT value FROM emq_meta WHERE environment = :environment AND key = :key), id, beat, timeout_ms
FROM emq_tree_sessions
