-- A successor starts with the last unban of its line of rotations. Go adds the condition at the end.
INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day, created_at, lifetime, expires_at,
	succeeds, usage_id, unbanned_at)
SELECT unhex(?1), ?2, ?3, ?4 ->> '$', ?5, ?6, ?7, ?8, ?9, iif(?9 = 0, 0, ?8 + ?9),
	nullif(?10, 0), nullif(?11, 0), ifnull((SELECT max(unbanned_at) FROM api_keys WHERE id = ?11 OR usage_id = ?11), 0)
WHERE
