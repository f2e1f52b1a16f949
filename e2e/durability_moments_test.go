package e2e

// Kills: what an operation has left when it is killed before one of its calls that change a file
// (durability_power_record_test.go). It holds what the calls before have made of the files, and the
// operation can be done once more.

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// importedPets is how many pets the import adds, in three transactions.
const importedPets = 1200

// TestAKillAtAnyMomentLeavesNothingHalfDone looks at what each operation leaves, and lets it be
// done once more. .ci/run takes only some of the calls, evenly spread.
func TestAKillAtAnyMomentLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	stock := newScene(t)
	operations := slices.Concat(powerOperations(t), changesByCommands(), migrations(t))
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			r := op.record(t, stock, binary)
			all := r.changes(0)
			var ofDatabase []int
			if old, ok := r.stock[r.db]; ok {
				ofDatabase = r.changes(old)
			}
			for _, at := range slices.Concat(evenly(all), evenly(ofDatabase)) {
				t.Run(fmt.Sprint("before event ", at), func(t *testing.T) { op.kill(t, r, at) })
				if t.Failed() {
					return // The other calls would say it all again.
				}
			}
			t.Logf("it makes %d calls that change files, %d of them the database's", len(all),
				len(ofDatabase))
		})
	}
}

// changes are the events that change a file, or any file if it is 0.
func (r *fileHistory) changes(file int) (events []int) {
	for i, e := range r.events {
		isChange := e.kind == wrote || e.kind == truncated || e.kind == renamed
		if isChange && (file == 0 || e.file == file) {
			events = append(events, i)
		}
	}
	return events
}

// evenly takes some of the events; with SOAK, more of them.
func evenly(events []int) (some []int) {
	every := max(1, len(events)/soak(15))
	for i := every - 1; i < len(events); i += every {
		some = append(some, events[i])
	}
	return some
}

// kill looks at what is left before an event, and at what becomes of it when it is done again.
func (op powerOperation) kill(t *testing.T, r *recorded, at int) {
	c := r.left(t, at, allOfThem, rand.New(rand.NewPCG(uint64(at), 0)), t.TempDir())
	noError(t, c.look(op.check))
	if op.again == nil {
		c.serve().kill()
	} else {
		op.again(c)
	}
	noError(t, c.look(op.check))
}

// serve starts a service on what is left.
func (c *powerCut) serve() *server {
	c.t.Helper()
	s := &server{t: c.t, db: c.db, key: c.key}
	s.run()
	return s
}

// repeatCreates repeats the first and the last create of each client. One that was confirmed is
// replayed.
func (c *powerCut) repeatCreates() {
	told := map[string]string{}
	for _, pet := range confirmed.FindAllStringSubmatch(c.told, -1) {
		told[pet[2]] = pet[1]
	}
	s := c.serve()
	defer s.kill()
	for i := range 16 {
		name := fmt.Sprintf("pet-%d-of-%d", 29*(i/8), i%8)
		got, err := call(s.url, s.key, "POST", "/pets", animalJSON(name), name)
		noError(c.t, err)
		id := strconv.FormatInt(decode[pet](c.t, got.body).ID, 10)
		isReplayed := got.header.Get("Idempotency-Replayed") == "true"
		if told[name] != "" && (!isReplayed || told[name] != id) {
			c.t.Errorf("%s had the id %s, and gets %s", name, told[name], id)
		}
	}
}

// useRotated wants exactly one of both keys to open the service.
func (c *powerCut) useRotated() {
	const opens, refused = "200 of 1000000000", "401 invalid_key"
	isRotated := query[int64](c.t, c.db, "SELECT count(*) FROM api_keys WHERE succeeds = 1") == 1
	unseen := fmt.Sprint(query[int64](c.t, c.db, "SELECT max(id) FROM api_keys"))
	s := c.serve()
	defer s.kill()
	if !isRotated {
		s.expect(c.t, c.key, opens)
		return
	}
	s.expect(c.t, c.key, refused)
	token := keyForm.FindString(c.told)
	if token == "" { // whoever finds a key that nobody has seen replaces it
		token = strings.TrimSpace(s.command("key", "rotate", "-overlap", "0s", "-db", c.db, unseen))
	}
	s.expect(c.t, token, opens)
}

// importAgain wants the rest to be imported.
func (c *powerCut) importAgain(pets string) {
	const imported = "SELECT total(value) FROM counters WHERE name GLOB 'import *'"
	again := program("pet", "import", "-db", c.db, pets)
	if stored := query[int64](c.t, c.db, imported); stored == importedPets {
		p := launch(c.t, again) // which tells the ids on stdout
		if p.status() != 1 || !strings.Contains(p.log.String(), "it was imported before") {
			c.t.Error(p.told())
		}
	} else if p := succeeds(c.t, again); !strings.Contains(p.log.String(),
		fmt.Sprintf(`"alreadyStored":%d}`, stored)) {
		c.t.Errorf("after %d pets: %s", stored, p.told())
	}
	s := &server{t: c.t, db: c.db}
	if others := s.checkImported(c.t, pets); others != allPets {
		c.t.Errorf("of %d older pets %d are left", allPets, others)
	}
}

func (c *powerCut) deleteAgain() {
	again := program("pet", "delete", "-db", c.db, "1", "2", "3", "4", "5")
	if query[int64](c.t, c.db, "SELECT count(*) FROM pets") == 0 {
		fails(c.t, again, "no pet has the id 1, 2")
	} else {
		succeeds(c.t, again)
	}
}

// redo runs a command once more, which does not touch the partial file that is left.
func (c *powerCut) redo(file string, args ...string) {
	c.t.Helper()
	if partial := file + ".partial"; isThere(partial) {
		fails(c.t, program(args...), partial,
			"another copy runs, or was stopped; remove it if none runs")
		noError(c.t, os.Remove(partial))
	}
	succeeds(c.t, program(args...))
}

// makeAgain makes a file, unless it has its name already.
func (c *powerCut) makeAgain(file string, command ...string) {
	args := append(command, "-db", c.db, file)
	if isThere(file) {
		fails(c.t, program(args...), file+" exists, and nothing is overwritten")
	} else {
		c.redo(file, args...)
	}
	c.told += "backup made, pets exported"
}

func (c *powerCut) restoreAgain() {
	if c.contents(c.db) == c.before {
		c.redo(c.db, "restore", "-db", c.db, "-skip-ids", "0", filepath.Join(filepath.Dir(c.db),
			"copy.db"))
	}
	c.told += "database restored"
}

// isThere reports whether there is a file.
func isThere(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// changesByCommands are transactions of the operator, in a database in which the first key is
// banned.
func changesByCommands() (operations []powerOperation) {
	for _, change := range []struct{ command, query, again string }{
		{"key set -name x 1", "SELECT count(*) FROM api_keys WHERE name = 'x'", ""},
		{"key revoke 1", "SELECT count(*) FROM api_keys WHERE revoked_at > 0", "revoked already"},
		{"key unban 1", "SELECT count(*) FROM api_keys WHERE unbanned_at > 0", "is not banned"},
		{"pet set -name x 1", "SELECT count(*) FROM pets WHERE name = 'x'", ""},
	} {
		args := func(db string) []string {
			return slices.Insert(strings.Fields(change.command), 2, "-db", db)
		}
		operations = append(operations, powerOperation{
			name:  change.command,
			begin: withBan,
			args:  func(sc *scene) []string { return args(sc.db) },
			check: func(c *powerCut) error {
				// The scene has not counted any edit.
				changed := c.number(change.query)
				edits := c.number("SELECT value FROM counters WHERE name = 'edits'")
				if changed != min(edits, 1) { // a second run counts one more
					return fmt.Errorf("%d are changed, and %d edits are counted", changed, edits)
				}
				return nil
			},
			again: func(c *powerCut) {
				changed := query[int64](c.t, c.db, change.query)
				p := launch(c.t, program(args(c.db)...))
				p.status()
				if changed == 1 && !strings.Contains(p.log.String(), change.again) {
					c.t.Errorf("it was done before: %s", p.told())
				}
				if query[int64](c.t, c.db, change.query) == 0 {
					c.t.Errorf("it is not done by a second run: %s", p.told())
				}
			},
		})
	}
	return operations
}

// withBan is a database in which the first key is banned.
func withBan(t *testing.T, stock *scene) *scene {
	t.Helper()
	banned := stock.again(t)
	database(t, banned.db, `REPLACE INTO usage
		(id, minute_used, minute_ends, day_used, day_ends, banned_at, banned_until)
		VALUES (1, 0, 0, 0, 0, 1, 9000000000000)`).Close()
	return banned
}

// migrations are those from each older version to the present one, which the start of a service
// makes.
func migrations(t *testing.T) (operations []powerOperation) {
	for version := 1; version < len(readSchema(t).migrations); version++ {
		operations = append(operations, powerOperation{
			name: fmt.Sprintf("a migration from version %d", version),
			begin: func(t *testing.T, stock *scene) *scene {
				return stock.ofVersion(t, version)
			},
			args: serveScene,
			meanwhile: func(_ *scene, p *process) {
				p.url() // once it is ready
				_ = p.stop()
			},
			check: func(c *powerCut) error {
				found := c.contents(c.db)
				if found != c.after && (found != c.before || c.told != "") {
					return fmt.Errorf("the database is of no version:\n%s", found)
				}
				pets := c.number("SELECT count(*) FROM pets")
				keys := c.number("SELECT count(*) FROM api_keys")
				if pets != allPets || keys != allKeys+1 {
					return fmt.Errorf("%d pets and %d keys are left", pets, keys)
				}
				return nil
			},
			again: func(c *powerCut) {
				c.serve().kill()
				c.told += "ready"
			},
		})
	}
	return operations
}

// ofVersion is the database as an older version of the program has left it. It has a key that was
// rotated into another one.
func (sc *scene) ofVersion(t *testing.T, version int) *scene {
	t.Helper()
	present := sc.again(t).db
	succeeds(t, program("key", "rotate", "-db", present, "2"))
	file := readSchema(t).older(t, present, version)
	database(t, file, "PRAGMA journal_mode = WAL").Close()
	return &scene{t: t, db: file}
}

// contents is all that SQL can see of a database.
func contents(t *testing.T, file string) string {
	t.Helper()
	checkIntegrity(t, file)
	db := database(t, file)
	defer db.Close()
	var text strings.Builder
	read := func(query string) (first []string) {
		rows, err := db.Query(query)
		noError(t, err)
		defer rows.Close()
		columns, err := rows.Columns()
		noError(t, err)
		values, pointers := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		for rows.Next() {
			noError(t, rows.Scan(pointers...))
			fmt.Fprintln(&text, values...)
			first = append(first, fmt.Sprint(values[0]))
		}
		noError(t, rows.Err())
		return first
	}
	read("PRAGMA user_version")
	read("SELECT sql FROM sqlite_schema ORDER BY name")
	for _, table := range read(
		"SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name") {
		if table == "identity" { // every migration and every restore draws another one
			read("SELECT id, value > 0 FROM identity")
			continue
		}
		if table == "counters" { // a backup notes itself, and may be killed before or after
			read("SELECT * FROM counters WHERE name <> 'backup'")
			continue
		}
		read("SELECT * FROM " + table)
	}
	return text.String()
}
