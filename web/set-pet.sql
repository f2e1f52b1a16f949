-- Changes what is not empty: the name, the category, the status.
UPDATE pets SET name = ifnull(nullif(? ->> '$', ''), name),
	category_id = ifnull(nullif(?, ''), category_id), status = ifnull(nullif(?, 0), status) WHERE id = ?
