-- Changes what ?2, a JSON object, has of the key ?1. Its quota counts on the enterprise plan only. A lifetime begins at
-- ?3, and 0 is for ever. The first revocation keeps its time.
UPDATE api_keys SET plan = ifnull(?2 ->> 'plan', plan), per_minute = ifnull(?2 ->> 'perMinute', per_minute),
	per_day = ifnull(?2 ->> 'perDay', per_day), name = ifnull(?2 ->> 'name', name),
	lifetime = ifnull(?2 ->> 'lifetime', lifetime),
	expires_at = CASE ?2 ->> 'lifetime' WHEN 0 THEN 0 ELSE ifnull(?3 + (?2 ->> 'lifetime'), expires_at) END,
	revoked_at = iif(revoked_at = 0, ifnull(?2 ->> 'revokedAt', 0), revoked_at)
WHERE id = ?1
