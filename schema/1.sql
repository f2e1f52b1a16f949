-- The schema, as the first version made it. Instants are Unix milliseconds; 0 stands for never.
CREATE TABLE pets (
	id          INTEGER PRIMARY KEY AUTOINCREMENT, -- from 1 upward; AUTOINCREMENT never reuses one
	category_id INTEGER NOT NULL,
	status      INTEGER NOT NULL CHECK (status BETWEEN 2 AND 4), -- available, pending, sold
	name        TEXT NOT NULL                      -- exactly as sent
) STRICT;
CREATE INDEX pets_status ON pets (status);             -- every index holds the rowid too, so this pages by id

CREATE TABLE api_keys (
	id                INTEGER PRIMARY KEY AUTOINCREMENT,
	digest            BLOB NOT NULL UNIQUE,      -- SHA-256 of the key, which itself is not stored
	last_four         TEXT NOT NULL,             -- of the key, for people
	test              INTEGER NOT NULL,          -- 1 for pet_test_, 0 for pet_live_
	name              TEXT NOT NULL,
	plan              TEXT NOT NULL,             -- free, pro, business, enterprise
	per_minute        INTEGER NOT NULL,          -- requests; used on the enterprise plan only
	per_day           INTEGER NOT NULL,
	created_at        INTEGER NOT NULL,
	lifetime          INTEGER NOT NULL,          -- milliseconds that it was made for; 0: for ever
	expires_at        INTEGER NOT NULL,          -- 0: never
	revoked_at        INTEGER NOT NULL DEFAULT 0,
	unbanned_at       INTEGER NOT NULL,          -- a ban that began at or before is lifted
	deprecated_use_at INTEGER NOT NULL DEFAULT 0, -- last use of the deprecated operation
	usage_id          INTEGER                    -- the first key of a line of rotations; NULL: this one
) STRICT;

CREATE TABLE usage (
	id           INTEGER PRIMARY KEY, -- of the key, or of the first in its line of rotations
	minute_used  INTEGER NOT NULL,    -- requests counted in the minute's window
	minute_ends  INTEGER NOT NULL,
	day_used     INTEGER NOT NULL,
	day_ends     INTEGER NOT NULL,
	banned_at    INTEGER NOT NULL,
	banned_until INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency (
	key_id          INTEGER NOT NULL,
	idempotency_key TEXT NOT NULL,    -- as the client sent it
	body_digest     BLOB NOT NULL,    -- SHA-256 of the request body
	pet_id          INTEGER NOT NULL, -- the pet it made
	created_at      INTEGER NOT NULL,
	PRIMARY KEY (key_id, idempotency_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_created_at ON idempotency (created_at);
