-- The keys that are banned at ?4, or have used four fifths of their minute or of their day, as JSON: the banned first,
-- then those that have used most, at most 20. ?5 holds the quotas of the plans. Keys that were rotated into one another
-- share their usage, and each of them that can be used is named.
WITH running AS (
	SELECT id AS line, iif(minute_ends > ?4 AND minute_ends <= ?4 + 120000, minute_used, 0) AS minute_used,
		iif(day_ends > ?4 AND day_ends <= ?4 + 172800000, day_used, 0) AS day_used, banned_at, banned_until
	FROM usage WHERE minute_ends > ?4 OR day_ends > ?4 OR banned_until > ?4),
quotas AS (
	SELECT key AS plan, nullif(value ->> 'perMinute', 0) AS per_minute, nullif(value ->> 'perDay', 0) AS per_day
	FROM json_each(?5)),
usable AS (
	SELECT k.id, k.name, k.plan, ifnull(q.per_minute, k.per_minute) AS per_minute, ifnull(q.per_day, k.per_day) AS per_day,
		minute_used, day_used, iif(banned_until > ?4 AND banned_at > k.unbanned_at, banned_until, 0) AS banned_until
	FROM running JOIN api_keys k ON k.id = line OR k.usage_id = line LEFT JOIN quotas q ON q.plan = k.plan
	WHERE k.revoked_at = 0 AND (k.expires_at = 0 OR k.expires_at > ?4)),
near AS (
	SELECT id, name, plan, per_minute, per_day, minute_used, day_used, banned_until,
		max(minute_used * 1.0 / per_minute, day_used * 1.0 / per_day) AS part
	FROM usable WHERE banned_until > 0 OR minute_used >= 0.8 * per_minute OR day_used >= 0.8 * per_day
	ORDER BY banned_until DESC, part DESC, id LIMIT 20)
SELECT json_group_array(json_object('id', id, 'name', name, 'plan', plan, 'perMinute', per_minute, 'perDay', per_day,
	'usedThisMinute', minute_used, 'usedToday', day_used, 'bannedUntil', banned_until)
	ORDER BY banned_until DESC, part DESC, id) FROM near
