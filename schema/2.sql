-- Finds the keys of a line of rotations, and tells which succeeds which.
CREATE INDEX api_keys_usage_id ON api_keys (usage_id) WHERE usage_id IS NOT NULL; -- finds a line of rotations
ALTER TABLE api_keys ADD COLUMN succeeds INTEGER; -- the key that it was rotated from; NULL: none
UPDATE api_keys SET succeeds = (SELECT max(older.id) FROM api_keys older -- a guess, for the keys that are there
	WHERE older.id < api_keys.id AND (older.id = api_keys.usage_id OR older.usage_id = api_keys.usage_id))
	WHERE usage_id IS NOT NULL;
