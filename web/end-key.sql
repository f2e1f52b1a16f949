-- Lets the key ?2 expire at ?1, unless it ends before that. changes() is that of the statement before: nothing ends
-- without a successor.
UPDATE api_keys SET expires_at = CASE expires_at WHEN 0 THEN ?1 ELSE min(expires_at, ?1) END
WHERE id = ?2 AND changes() = 1
