-- A block of pets, as one row: those with ids from ?1 to ?2, in any order, each a line of ID % 64,STATUS CODE,CATEGORY,
-- NAME AS JSON. That takes a fifth of what the same pets take on a page.
SELECT ifnull(char(10) || group_concat((id % 64) || ',' || status || ',' || category_id || ',' || json_quote(name),
	char(10)), '') AS body, 0 AS last, EXISTS (SELECT 1 FROM pets WHERE id > ?2) AS more
FROM pets WHERE id BETWEEN ?1 AND ?2
