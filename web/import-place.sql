-- Moves the place of the import ?1 from ?3 to ?2, unless it is another.
INSERT OR REPLACE INTO counters (name, value) SELECT ?1, ?2
WHERE ifnull((SELECT value FROM counters WHERE name = ?1), 0) = ?3
