-- What is stored after a flush, as one array of rows: the usages that merge-usage.sql has changed, ?1, and all that are
-- banned at ?2.
SELECT json_group_array(json_array(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)) FROM usage
WHERE id IN (SELECT value ->> 0 FROM json_each(?1)) OR banned_until > 0 AND banned_until > ?2
