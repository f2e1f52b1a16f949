-- Adds to the usages what a service has counted since its last flush: ?1, rows of [id, requests of the minute, its end,
-- requests of the day, its end]. ?2 is the service, ?3 the number of its flush, which adds nothing the second time, and
-- ?4 the time. A stored window that runs wins, as bucket.running has it; requests of a window that has ended are
-- dropped if another runs.
INSERT INTO usage (id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, 0, 0 FROM json_each(?1)
WHERE NOT EXISTS (SELECT 1 FROM services WHERE id = ?2 AND flushes >= ?3)
ON CONFLICT (id) DO UPDATE SET
	minute_used = excluded.minute_used * (excluded.minute_ends > ?4)
		+ minute_used * (minute_ends > ?4 AND minute_ends <= ?4 + 2 * 60000),
	minute_ends = iif(minute_ends > ?4 AND minute_ends <= ?4 + 2 * 60000, minute_ends, excluded.minute_ends),
	day_used = excluded.day_used * (excluded.day_ends > ?4)
		+ day_used * (day_ends > ?4 AND day_ends <= ?4 + 2 * 86400000),
	day_ends = iif(day_ends > ?4 AND day_ends <= ?4 + 2 * 86400000, day_ends, excluded.day_ends)
