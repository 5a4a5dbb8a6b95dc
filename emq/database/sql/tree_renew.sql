-- Note that a session is alive: its beat grows by :step.
UPDATE emq_tree_sessions SET beat = beat + :step WHERE id = :session
