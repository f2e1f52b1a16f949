-- How much the keys were used from the day ?1 on, as JSON: those whose usage has the id ?2, or all if that is 0, and of
-- them the ?3 busiest, or all if that is -1. Keys that were rotated into one another are one, under the name of the
-- newest. The busiest comes first: the one with the most requests admitted. A day without requests is left out.
SELECT json_group_array(json_object('id', id, 'name', name, 'plan', plan, 'days', json(
		(SELECT json_group_array(json_object('day', date(day * 86400, 'unixepoch'),
			'admitted', admitted, 'refused', refused, 'errors', errors) ORDER BY day)
		FROM usage_days WHERE usage_id = line AND day >= ?1)))
	ORDER BY requests DESC, id)
FROM (SELECT max(id) AS id, name, plan, coalesce(usage_id, id) AS line, (SELECT sum(admitted) FROM usage_days
		WHERE usage_id = coalesce(api_keys.usage_id, api_keys.id) AND day >= ?1) AS requests FROM api_keys
	WHERE id BETWEEN ?2 AND ifnull(nullif(?2, 0), 9223372036854775807)
		OR usage_id BETWEEN ?2 AND ifnull(nullif(?2, 0), 9223372036854775807)
	GROUP BY line ORDER BY requests DESC, id LIMIT ?3)
