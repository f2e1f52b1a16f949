-- The columns of keys, each with its usage. Go adds at the end which keys it wants, and in which order.
SELECT k.id, k.name, k.plan, k.per_minute, k.per_day, k.test, k.lifetime, k.created_at,
	k.expires_at, k.revoked_at, k.unbanned_at, coalesce(k.usage_id, k.id), ifnull(k.succeeds, 0),
	ifnull(minute_used, 0), ifnull(minute_ends, 0), ifnull(day_used, 0), ifnull(day_ends, 0),
	ifnull(banned_at, 0), ifnull(banned_until, 0)
FROM api_keys k LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id)
