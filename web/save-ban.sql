-- Stores a ban of the usage ?1, from ?2 to ?3.
INSERT INTO usage (id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
VALUES (?1, 0, 0, 0, 0, ?2, ?3) ON CONFLICT (id) DO UPDATE SET banned_at = ?2, banned_until = ?3
