-- Changes what is not empty: the name, the category, the status. Of the ways to write an id, only the usual one
-- counts: not 007, nor 7e0.
UPDATE pets SET name = ifnull(nullif(? ->> '$', ''), name),
	category_id = ifnull(nullif(?, ''), category_id), status = ifnull(nullif(?, 0), status) WHERE id = ?4
	AND CAST(id AS TEXT) = ?4
