-- A row for each key, its columns ended by tabs. The state sums it up, and says what about it needs attention.
SELECT format(replace('%d|%s|%s|%d/%d|%d/%d|%s|%s', '|', char(9)), id, iif(test, 'test ', 'live ') || last_four, plan, minute, per_minute, day, per_day, CASE
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
