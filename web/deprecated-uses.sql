-- Notes when keys last used the deprecated operation: an object of times by the ids.
UPDATE api_keys SET deprecated_use_at = max(deprecated_use_at, use.value)
FROM json_each(?) AS use WHERE api_keys.id = CAST(use.key AS INTEGER)
