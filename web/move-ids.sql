-- In all tables that assign ids, new ones start so many above those that there are, or have been.
WITH used (name, seq) AS (SELECT 'pets', ifnull(max(id), 0) FROM pets
	UNION ALL SELECT 'api_keys', ifnull(max(id), 0) FROM api_keys)
INSERT INTO sqlite_sequence (name, seq) SELECT name, seq FROM used
	WHERE name NOT IN (SELECT name FROM sqlite_sequence);
UPDATE sqlite_sequence SET seq = seq + ?;
