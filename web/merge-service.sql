-- Notes that the service ?1 has ended its flush ?2 at ?3.
INSERT INTO services (id, flushes, seen_at) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET flushes = max(flushes, ?2), seen_at = max(seen_at, ?3)
