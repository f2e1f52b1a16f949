-- A row of the table of keys, its columns ended by tabs, for each key, as it is at ?1: all, or the one with the id ?3.
-- ?2 holds the quotas of the plans. The state sums a key up, and says what about it needs attention.
WITH quotas AS (
	SELECT key AS plan, nullif(value ->> 'perMinute', 0) AS minute, nullif(value ->> 'perDay', 0) AS day FROM json_each(?2)),
keys AS (
	SELECT k.id, iif(test, 'test ', 'live ') || last_four AS key, k.plan, k.name, revoked_at, expires_at, deprecated_use_at,
		min(ifnull(quotas.minute, per_minute), 999999999999999) AS per_minute,
		min(ifnull(quotas.day, per_day), 999999999999999) AS per_day,
		iif(minute_ends > ?1 AND minute_ends <= ?1 + 120000, minute_used, 0) AS minute,
		iif(day_ends > ?1 AND day_ends <= ?1 + 172800000, day_used, 0) AS day,
		iif(banned_until > ?1 AND banned_at > unbanned_at, banned_until, 0) AS banned_until
	FROM api_keys k LEFT JOIN usage u ON u.id = coalesce(k.usage_id, k.id) LEFT JOIN quotas ON quotas.plan = k.plan
	WHERE k.id BETWEEN ?3 AND ifnull(nullif(?3, 0), 9223372036854775807))
SELECT format(replace('%d|%s|%s|%d/%d|%d/%d|%s|%s', '|', char(9)), id, key, plan, minute, per_minute, day, per_day, CASE
	WHEN revoked_at THEN 'revoked'
	WHEN expires_at BETWEEN 1 AND ?1 THEN 'expired'
	ELSE iif(banned_until, 'banned to ' || strftime(
			iif(banned_until / 86400000 > ?1 / 86400000, '%Y-%m-%d %H:%M:%SZ', '%H:%M:%SZ'), banned_until / 1000, 'unixepoch'),
			'active')
		|| iif(expires_at, iif(expires_at < ?1 + 14 * 86400000, '; ends soon, ', '; ends ')
			|| date(expires_at / 1000, 'unixepoch'), '')
		|| iif(minute >= 0.8 * per_minute, format('; minute %.0f %%', min(100.0 * minute / per_minute, 100)), '')
		|| iif(day >= 0.8 * per_day, format('; day %.0f %%', min(100.0 * day / per_day, 100)), '')
		|| iif(deprecated_use_at, '; getPet ' || date(deprecated_use_at / 1000, 'unixepoch'), '')
	END, name) FROM keys ORDER BY id
