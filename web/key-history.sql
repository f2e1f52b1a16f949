-- When the key ?1 was made and used, and which keys of its line of rotations, whose usage is ?2, it succeeds and is
-- succeeded by: a line of text each.
SELECT text FROM (
	SELECT 1 AS place, 'created ' || strftime('%Y-%m-%d %H:%M:%SZ', created_at / 1000, 'unixepoch') || ', ' || iif(minute_ends,
		'last used ' || strftime('%Y-%m-%d %H:%MZ', minute_ends / 1000 - 60, 'unixepoch'), 'never used') AS text
	FROM api_keys k LEFT JOIN usage u ON u.id = ?2 WHERE k.id = ?1
	UNION ALL SELECT 2, 'succeeds key ' || succeeds FROM api_keys WHERE id = ?1 AND succeeds > 0
	UNION ALL SELECT 2 + id, 'succeeded by key ' || id FROM api_keys WHERE usage_id = ?2 AND succeeds = ?1
	UNION ALL SELECT 9223372036854775807, 'keys that succeed one another share their usage, limits and time of last use'
	WHERE EXISTS (SELECT 1 FROM api_keys WHERE usage_id = ?2))
ORDER BY place
