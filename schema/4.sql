-- Who has used the service, how much, on which day: kept for 400 days.
CREATE TABLE usage_days (
	usage_id INTEGER NOT NULL, -- as in usage
	day      INTEGER NOT NULL, -- whole days since 1970-01-01, in UTC
	admitted INTEGER NOT NULL, -- requests that were let in, whatever the response
	refused  INTEGER NOT NULL, -- responses of 429, during bans too
	errors   INTEGER NOT NULL, -- responses of 5xx
	PRIMARY KEY (usage_id, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_days_day ON usage_days (day); -- finds the old ones
INSERT INTO counters (name, value) VALUES ('additions', 0); -- not used any more
