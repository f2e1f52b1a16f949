-- Deletes at most so many Idempotency-Keys as old as this.
DELETE FROM idempotency WHERE (key_id, idempotency_key) IN
	(SELECT key_id, idempotency_key FROM idempotency WHERE created_at <= ? ORDER BY created_at LIMIT ?)
