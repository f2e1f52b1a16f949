-- What is stored of the usage with the id.
SELECT minute_used, minute_ends, day_used, day_ends, banned_at, banned_until FROM usage WHERE id = ?
