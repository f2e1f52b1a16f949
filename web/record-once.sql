-- Records the pet that create-once.sql has added, if it has: changes() and last_insert_rowid() are those of the
-- statement before.
INSERT OR REPLACE INTO idempotency (key_id, idempotency_key, body_digest, pet_id, created_at)
SELECT ?, ? ->> '$', unhex(?), last_insert_rowid(), ? WHERE changes() = 1
