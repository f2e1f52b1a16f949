-- Deletes at most so many days of usages up to this.
DELETE FROM usage_days WHERE (usage_id, day) IN
	(SELECT usage_id, day FROM usage_days WHERE day <= ? ORDER BY day LIMIT ?)
