-- Note that a session is alive: its beat grows by :step. Return it if it is there.
UPDATE emq_tree_sessions SET beat = beat + :step WHERE id = :session RETURNING id
