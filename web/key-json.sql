-- All of the keys as a JSON array, or the one as an object. Times are those of RFC 3339, or null.
SELECT iif(?3 = 0, list, list -> 0) FROM (SELECT json_group_array(json_object('id', id, 'name', name, 'plan', plan,
	'lastFour', last_four,
	'createdAt', rtrim(rtrim(strftime('%Y-%m-%dT%H:%M:%f', nullif(created_at, 0) / 1000.0, 'unixepoch'), '0'), '.') || 'Z',
	'expiresAt', rtrim(rtrim(strftime('%Y-%m-%dT%H:%M:%f', nullif(expires_at, 0) / 1000.0, 'unixepoch'), '0'), '.') || 'Z',
	'revokedAt', rtrim(rtrim(strftime('%Y-%m-%dT%H:%M:%f', nullif(revoked_at, 0) / 1000.0, 'unixepoch'), '0'), '.') || 'Z',
	'perMinute', per_minute, 'perDay', per_day, 'usedThisMinute', minute, 'usedToday', day,
	'bannedUntil', rtrim(rtrim(strftime('%Y-%m-%dT%H:%M:%f', nullif(banned_until, 0) / 1000.0, 'unixepoch'), '0'), '.') || 'Z',
	'deprecatedUseAt', rtrim(rtrim(strftime('%Y-%m-%dT%H:%M:%f', nullif(deprecated_use_at, 0) / 1000.0, 'unixepoch'), '0'), '.') || 'Z'
	) ORDER BY id) AS list FROM keys)
