-- A table of who used the service from the day ?1 on, its columns ended by tabs, the heading first: a row for each key,
-- the busiest first, or, for the usage ?2, a row for each of ?3 days. Keys that were rotated into one another are one,
-- under the name of the newest. With ?4, bars show, too, what was admitted and refused.
WITH RECURSIVE dates (day) AS (SELECT ?1 UNION ALL SELECT day + 1 FROM dates WHERE day < ?1 + ?3 - 1),
lines AS (
	SELECT max(id) AS id, name, plan, coalesce(usage_id, id) AS line FROM api_keys
	WHERE id BETWEEN ?2 AND ifnull(nullif(?2, 0), 9223372036854775807)
		OR usage_id BETWEEN ?2 AND ifnull(nullif(?2, 0), 9223372036854775807) GROUP BY line),
parts AS (
	SELECT id AS label, char(9) || plan || char(9) || name AS last, ifnull(sum(admitted), 0) AS admitted,
		ifnull(sum(refused), 0) AS refused, ifnull(sum(errors), 0) AS errors, -ifnull(sum(admitted), 0) AS place
	FROM lines LEFT JOIN usage_days ON usage_id = line AND day >= ?1 WHERE ?2 = 0 GROUP BY line
	UNION ALL SELECT date(dates.day * 86400, 'unixepoch'), '', ifnull(admitted, 0), ifnull(refused, 0), ifnull(errors, 0),
		dates.day
	FROM dates LEFT JOIN usage_days d ON usage_id = ?2 AND d.day = dates.day WHERE ?2 > 0),
scale (most) AS (SELECT max(1, ifnull(max(admitted + refused), 1)) FROM parts)
SELECT iif(?2, 'DAY', 'ID') || char(9) || ' ADMITTED' || char(9) || '  REFUSED' || char(9) || '  ERRORS'
	|| iif(?4, '  █ admitted ░ refused ', '') || iif(?2, (SELECT format('%skey %d, %s, %s', char(9), id, plan, name) FROM lines),
	char(9) || 'PLAN' || char(9) || 'NAME')
UNION ALL SELECT text FROM (
	SELECT rtrim(format(replace('%s|%9d|%9d|%8d', '|', char(9)), label, admitted, refused, errors)
		|| iif(?4, format('  %-!21s', substr('████████████████████', 1, (20 * admitted + most - 1) / most)
			|| substr('░░░░░░░░░░░░░░░░░░░░', 1, (20 * refused + most - 1) / most)), '') || last) AS text
	FROM parts, scale ORDER BY place, label)
