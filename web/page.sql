-- A page of pets, as one row, by keyset paging: ?1 is the id to start after, ?2 the limit, and ?3 the status code that
-- the condition in the place of $FILTER asks for. $PET is pet.sql. Columns have short names because the driver copies
-- the names for every query.
SELECT body, ifnull(last, 0) AS last, EXISTS (SELECT 1 FROM pets WHERE $FILTER id > last) AS more
FROM (SELECT json_group_array($PET ORDER BY id) AS body, max(id) AS last
FROM (SELECT id, name, category_id, status FROM pets WHERE $FILTER id > ?1 ORDER BY id LIMIT ?2))
