-- The keys as they are at ?1, for what stands behind it: all, or the one with the id ?3. ?2 holds the plans' quotas.
WITH quotas AS (
	SELECT key AS plan, nullif(value ->> 'perMinute', 0) AS minute, nullif(value ->> 'perDay', 0) AS day FROM json_each(?2)),
keys AS (
	SELECT k.id, test, last_four, k.plan, k.name, created_at, revoked_at, expires_at, deprecated_use_at,
		min(ifnull(quotas.minute, per_minute), 999999999999999) AS per_minute,
		min(ifnull(quotas.day, per_day), 999999999999999) AS per_day,
		iif(minute_ends > ?1 AND minute_ends <= ?1 + 120000, minute_used, 0) AS minute,
		iif(day_ends > ?1 AND day_ends <= ?1 + 172800000, day_used, 0) AS day,
		iif(banned_until > ?1 AND banned_at > unbanned_at, banned_until, 0) AS banned_until
	FROM api_keys k LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id) LEFT JOIN quotas ON quotas.plan = k.plan
	WHERE k.id BETWEEN ?3 AND ifnull(nullif(?3, 0), 9223372036854775807))
