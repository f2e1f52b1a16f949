-- What tells this database from all others. A copy that is restored becomes another database.
CREATE TABLE identity (
	id    INTEGER PRIMARY KEY CHECK (id = 1),   -- there is one row
	value INTEGER NOT NULL CHECK (value > 0)    -- random; new with each restore
) STRICT;
