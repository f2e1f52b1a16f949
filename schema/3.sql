-- What the commands and the services that share the tables tell each other.
CREATE TABLE counters (
	name  TEXT PRIMARY KEY,   -- edits: how often commands have changed what services remember
	                          -- backup: when the last petstore backup ended, in Unix seconds
	value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('edits', 0);

CREATE TABLE services (
	id      TEXT PRIMARY KEY, -- random, for one run of a service
	flushes INTEGER NOT NULL, -- the number of its last batch of usage
	seen_at INTEGER NOT NULL  -- when its first batch was, never updated; in the row "probe", when the last probe was
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_banned_until ON usage (banned_until) WHERE banned_until > 0; -- finds the bans that run
