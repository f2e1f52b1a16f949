-- Adds a pet unless its Idempotency-Key has been used lately: a category, a status code, a name, then the id of the API
-- key, the Idempotency-Key, and when a record is too old to count.
INSERT INTO pets (category_id, status, name) SELECT ?, ?, ? ->> '$' WHERE NOT EXISTS
	(SELECT 1 FROM idempotency WHERE key_id = ? AND idempotency_key = ? ->> '$' AND created_at > ?)
