-- Adds to the days what a service has counted since its last flush: ?1, rows of [id of the usage, day, admitted, refused,
-- errors]. ?2 is the service, and ?3 the number of its flush, which adds nothing the second time.
INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?1)
WHERE NOT EXISTS (SELECT 1 FROM services WHERE id = ?2 AND flushes >= ?3)
ON CONFLICT (usage_id, day) DO UPDATE SET
	admitted = admitted + excluded.admitted, refused = refused + excluded.refused, errors = errors + excluded.errors
