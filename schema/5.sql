-- What tells this database from all others. A copy that is restored becomes another database.
CREATE TABLE identity (
	id    INTEGER PRIMARY KEY CHECK (id = 1), -- there is one row
	value INTEGER NOT NULL                    -- random, above 0; new with each restore
) STRICT;
