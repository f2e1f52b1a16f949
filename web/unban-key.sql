-- Lifts at ?1 the ban of all keys that share the usage ?2, also one that began while the clock was ahead.
UPDATE api_keys SET unbanned_at = max(?1, ifnull((SELECT banned_at FROM usage WHERE id = ?2), 0))
WHERE id = ?2 OR usage_id = ?2
