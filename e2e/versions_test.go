package e2e

// How tests get programs and databases of other versions.

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// schema is what the source says of the versions of the schema.
type schema struct {
	migrations []string // from one version to the next
}

func readSchema(t *testing.T) (s schema) {
	t.Helper()
	for {
		migration, err := os.ReadFile(fmt.Sprintf("../schema/%d.sql", len(s.migrations)+1))
		if errors.Is(err, os.ErrNotExist) && len(s.migrations) > 2 {
			return s
		}
		noError(t, err)
		s.migrations = append(s.migrations, string(migration))
	}
}

// buildNext builds what a next version could be: the present source with one more
// migration, which adds a table, and a column to each of the others.
func buildNext(t *testing.T) (file string) {
	t.Helper()
	folder := t.TempDir()
	migration := "CREATE TABLE next (id INTEGER PRIMARY KEY) STRICT;"
	for _, table := range []string{"pets", "api_keys", "usage", "idempotency", "counters",
		"services", "usage_days", "identity"} {
		migration += fmt.Sprintf(
			"\nALTER TABLE %s ADD COLUMN next TEXT NOT NULL DEFAULT 'nothing';", table)
	}
	place, err := filepath.Abs(fmt.Sprintf("../schema/%d.sql", len(readSchema(t).migrations)+1))
	noError(t, err)
	next := filepath.Join(folder, "next.sql")
	noError(t, os.WriteFile(next, []byte(migration), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{place: next}})
	noError(t, err)
	noError(t, os.WriteFile(filepath.Join(folder, "overlay.json"), overlay, 0o600))
	file = filepath.Join(folder, "petstore")
	build(t, "..", file, "-overlay", filepath.Join(folder, "overlay.json"))
	return file
}

// older makes a database as an older version would have it of one of the present
// version: without the tables and columns that came later.
func (s schema) older(t *testing.T, present string, version int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), fmt.Sprintf("version-%d.db", version))
	db := database(t, file, "ATTACH '"+present+"' AS present", strings.Join(s.migrations[:version],
		";\n"))
	defer db.Close()
	rows, err := db.Query(
		`SELECT tables.name, group_concat(columns.name) FROM main.sqlite_schema AS tables,
		pragma_table_info(tables.name, 'main') AS columns
		WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite%' GROUP BY tables.name`)
	noError(t, err)
	defer rows.Close()
	statements := []string{
		"DELETE FROM main.sqlite_sequence",
		"INSERT INTO main.sqlite_sequence SELECT * FROM present.sqlite_sequence",
		fmt.Sprint("PRAGMA main.user_version = ", version),
		"PRAGMA main.application_id = 0x70657473",
	}
	for rows.Next() {
		var table, columns string
		noError(t, rows.Scan(&table, &columns))
		// the migrations and the services make their rows
		if table == "counters" || table == "services" {
			continue
		}
		statements = append(statements,
			fmt.Sprintf("INSERT INTO main.%s (%s) SELECT %[2]s FROM present.%[1]s", table, columns))
	}
	noError(t, rows.Err())
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return file
}
