package e2e

// Power cuts: on thousands of disks that one could have left (durability_power_record_test.go),
// SQLite opens the database, and what the program had told is true.

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"petstore/e2e/planted"
)

// powerCut is a disk that a power cut may have left, and what had been told before.
type powerCut struct {
	t             *testing.T
	db            string
	key           string // the first one
	told          string
	before, after string // the contents of the database without a power cut
	sql           *sql.DB
}

// powerOperation is what goes on when the power is cut.
type powerOperation struct {
	name      string
	begin     func(t *testing.T, stock *scene) *scene // nil: a database that was in use
	args      func(sc *scene) []string
	meanwhile func(sc *scene, p *process) // nil: it ends by itself
	check     func(c *powerCut) error     // the first promise that is broken, or nil
	again     func(c *powerCut)           // does it once more after a kill; nil: a service starts
}

// serveScene starts a service on a scene.
func serveScene(sc *scene) []string { return []string{"-db", sc.db, "-addr", "127.0.0.1:0"} }

func powerOperations(t *testing.T) []powerOperation {
	pets := petFile(t, importedPets)
	return []powerOperation{
		{
			name: "creates of 8 clients, and a checkpoint",
			args: serveScene,
			meanwhile: func(sc *scene, p *process) {
				createBy8(p, sc.key, 100, func(string) string { return "" })
			},
			check: (*powerCut).checkCreates,
		},
		{
			name: "creates under an Idempotency-Key",
			args: serveScene,
			meanwhile: func(sc *scene, p *process) {
				createBy8(p, sc.key, 30, func(name string) string { return name })
			},
			check: (*powerCut).checkRecords,
			again: (*powerCut).repeatCreates,
		},
		{
			name: "a ban",
			begin: func(t *testing.T, stock *scene) *scene {
				sc := stock.again(t)
				s := &server{t: t, db: sc.db}
				sc.key = s.newKey()
				return sc
			},
			args: serveScene,
			meanwhile: func(sc *scene, p *process) {
				url := p.url()
				for range 125 {
					_, err := call(url, sc.key, "GET", "/pets", "", "")
					noError(sc.t, err)
				}
				_ = p.stop()
			},
			check: (*powerCut).checkBan,
		},
		{
			name: "a first start",
			begin: func(t *testing.T, _ *scene) *scene {
				return &scene{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
			},
			args: serveScene,
			meanwhile: func(_ *scene, p *process) {
				p.url() // then the key is printed
				key := keyForm.FindString(p.out.String())
				createBy8(p, key, 2, func(string) string { return "" })
			},
			check: func(c *powerCut) error { return errors.Join(c.checkKeys(), c.checkCreates()) },
		},
		{
			name:  "key create",
			args:  func(sc *scene) []string { return []string{"key", "create", "-db", sc.db} },
			check: (*powerCut).checkKeys,
		},
		{
			name: "key rotate",
			args: func(sc *scene) []string {
				return []string{"key", "rotate", "-db", sc.db, "-overlap", "0s", "1"}
			},
			check: (*powerCut).checkKeys,
			again: (*powerCut).useRotated,
		},
		{
			name: "an import",
			args: func(sc *scene) []string {
				return []string{"pet", "import", "-db", sc.db, pets}
			},
			check: (*powerCut).checkImport,
			again: func(c *powerCut) { c.importAgain(pets) },
		},
		{
			name: "a delete of many",
			args: func(sc *scene) []string {
				return []string{"pet", "delete", "-db", sc.db, "1", "2", "3", "4", "5"}
			},
			check: (*powerCut).checkDeletion,
			again: (*powerCut).deleteAgain,
		},
		{
			name: "a restore",
			args: func(sc *scene) []string {
				return []string{"restore", "-db", sc.db, "-skip-ids", "0", sc.copy}
			},
			check: (*powerCut).checkRestore,
			again: (*powerCut).restoreAgain,
		},
		{
			name: "a backup",
			args: func(sc *scene) []string {
				return []string{"backup", "-db", sc.db, sc.db + ".backup"}
			},
			check: (*powerCut).checkBackup,
			again: func(c *powerCut) { c.makeAgain(c.db+".backup", "backup") },
		},
		{
			name: "an export",
			args: func(sc *scene) []string {
				return []string{"pet", "export", "-db", sc.db, sc.db + ".jsonl"}
			},
			check: (*powerCut).checkExport,
			again: func(c *powerCut) { c.makeAgain(c.db+".jsonl", "pet", "export") },
		},
	}
}

// TestAPowerCutLosesNothingThatWasTold cuts the power after any event of each operation.
func TestAPowerCutLosesNothingThatWasTold(t *testing.T) {
	t.Parallel()
	stock := newScene(t)
	for _, op := range powerOperations(t) {
		t.Run(op.name, func(t *testing.T) {
			disks, err := op.cutPower(t, stock, binary, soak(120))
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d disks", disks)
		})
	}
}

// recorded is an operation that ran to its end.
type recorded struct {
	*fileHistory
	db, key       string // the name of the database, and its first key
	before, after string // its contents
}

// record runs the operation once, with a program.
func (op powerOperation) record(t *testing.T, stock *scene, file string) *recorded {
	t.Helper()
	sc := stock.again(t)
	if op.begin != nil {
		sc = op.begin(t, stock)
	}
	r := &recorded{db: filepath.Base(sc.db), key: sc.key}
	if isThere(sc.db) {
		r.before = contents(t, sc.again(t).db)
	}
	cmd := program(op.args(sc)...)
	cmd.Args[0] = file
	r.fileHistory = record(t, filepath.Dir(sc.db), cmd, func(p *process) {
		if op.meanwhile != nil {
			op.meanwhile(sc, p)
		}
	})
	r.after = contents(t, sc.db)
	return r
}

// left is what is left in a folder after so many events.
func (r *recorded) left(t *testing.T, cut int, which choice, random *rand.Rand,
	folder string) *powerCut {
	r.disk(cut, which, random, folder)
	return &powerCut{
		t: t, db: filepath.Join(folder, r.db), key: r.key, told: r.told(cut),
		before: r.before, after: r.after,
	}
}

// cutPower tries so many disks, and returns what was wrong with one of them.
func (op powerOperation) cutPower(t *testing.T, stock *scene, file string, disks int) (
	tried int, err error) {
	r := op.record(t, stock, file)
	random := rand.New(rand.NewPCG(uint64(len(r.events)), 0))
	for ; tried < disks; tried++ {
		cut := 1 + random.IntN(len(r.events))
		which := choice(tried % int(choices))
		folder, err := os.MkdirTemp("", "petstore-power-")
		noError(t, err)
		err = r.left(t, cut, which, random, folder).look(op.check)
		_ = os.RemoveAll(folder)
		if err != nil {
			return tried, fmt.Errorf("after %d of %d events, with choice %d of the rest: %w",
				cut, len(r.events), which, err)
		}
	}
	return tried, nil
}

// look opens what is left, and checks it.
func (c *powerCut) look(check func(*powerCut) error) error {
	if !isThere(c.db) {
		if c.before != "" || c.told != "" {
			return errors.New("the database has lost its name")
		}
		return nil
	}
	var err error
	c.sql, err = sql.Open("sqlite", c.db)
	noError(c.t, err)
	defer c.sql.Close()
	c.sql.SetMaxOpenConns(1)
	var verdict string
	err = c.sql.QueryRow("PRAGMA integrity_check").Scan(&verdict)
	if err != nil {
		return fmt.Errorf("the database cannot be opened: %w", err)
	}
	if verdict != "ok" {
		return fmt.Errorf("the database is damaged: %s", verdict)
	}
	version := c.number("SELECT user_version FROM pragma_user_version")
	if version == 0 && c.told == "" {
		return nil // it was only just made
	}
	return check(c)
}

// number is what a query of one number finds, or -1 after an error.
func (c *powerCut) number(query string, args ...any) int64 {
	var n sql.NullInt64
	if err := c.sql.QueryRow(query, args...).Scan(&n); err != nil {
		return -1
	}
	return n.Int64
}

// confirmed matches the body of a 201.
var confirmed = regexp.MustCompile(
	`HTTP/1\.1 201 Created\r\n(?:[^\r]+\r\n)+\r\n\{"id":(\d+),"name":"([^"]+)"`)

// checkCreates wants each confirmed pet under its id, no refused one, none twice, and no id again.
func (c *powerCut) checkCreates() error {
	for _, pet := range confirmed.FindAllStringSubmatch(c.told, -1) {
		id, _ := strconv.ParseInt(pet[1], 10, 64)
		if c.number("SELECT count(*) FROM pets WHERE id = ? AND name = ?", id, pet[2]) != 1 {
			return fmt.Errorf("%s was confirmed as %d, and is not there", pet[2], id)
		}
		if c.number("SELECT seq FROM sqlite_sequence WHERE name = 'pets'") < id {
			return fmt.Errorf("the id %d would be given again", id)
		}
	}
	if c.number("SELECT count(*) FROM pets WHERE name GLOB 'refused*'") != 0 {
		return errors.New("a pet that was refused is there")
	}
	if c.number("SELECT count(*) - count(DISTINCT name) FROM pets WHERE name <> 'Rex'") != 0 {
		return errors.New("a pet is there twice")
	}
	return nil
}

// checkRecords also wants each pet with its record, and none without.
func (c *powerCut) checkRecords() error {
	lost := c.number(`SELECT count(*) FROM pets AS p FULL JOIN idempotency AS i ON i.pet_id = p.id
		WHERE p.name IS NOT 'Rex' AND p.name IS NOT i.idempotency_key`)
	if lost != 0 {
		return fmt.Errorf("%d pets or records are without the other", lost)
	}
	return c.checkCreates()
}

// checkBan wants the ban that a response has told.
func (c *powerCut) checkBan() error {
	isTold := strings.Contains(c.told, `"code":"key_banned"`)
	if isTold && c.number("SELECT count(*) FROM usage WHERE banned_until > 0") != 1 {
		return errors.New("a ban was told, and is not there")
	}
	return nil
}

// checkKeys wants each key that was shown.
func (c *powerCut) checkKeys() error {
	for _, key := range keyForm.FindAllString(c.told, -1) {
		digest := sha256.Sum256([]byte(key))
		if c.number("SELECT count(*) FROM api_keys WHERE digest = ?", digest[:]) != 1 {
			return errors.New("a key was shown, and is not there")
		}
	}
	successors := c.number("SELECT count(*) FROM api_keys WHERE succeeds = 1")
	ended := c.number("SELECT count(*) FROM api_keys WHERE id = 1 AND expires_at > 0")
	if successors != ended {
		return fmt.Errorf("of a key that has ended there are %d successors", successors)
	}
	return nil
}

// checkImport wants whole transactions, and their number with them.
func (c *powerCut) checkImport() error {
	stored := c.number("SELECT total(value) FROM counters WHERE name GLOB 'import *'")
	pets := c.number("SELECT count(*) FROM pets WHERE name GLOB 'imported*'")
	isWhole := pets%500 == 0 || pets == importedPets
	isTold := strings.Contains(c.told, "pets imported")
	if pets != stored || !isWhole || isTold && pets != importedPets {
		return fmt.Errorf("%d pets are there, and %d by the number of the import", pets, stored)
	}
	return nil
}

// checkDeletion wants all pets or none.
func (c *powerCut) checkDeletion() error {
	isTold := strings.Contains(c.told, "pets deleted")
	left := c.number("SELECT count(*) FROM pets")
	if left != 0 && (left != allPets || isTold) {
		return fmt.Errorf("%d pets are left", left)
	}
	return nil
}

// checkRestore wants the old or the restored content, and the old one kept.
func (c *powerCut) checkRestore() error {
	found := c.contents(c.db)
	isTold := strings.Contains(c.told, "database restored")
	if found != c.after && (found != c.before || isTold) {
		return errors.New("the database is neither the old nor the restored one")
	}
	if c.number("SELECT seq FROM sqlite_sequence WHERE name = 'pets'") < allPets {
		return errors.New("an id that the old database has given would be given again")
	}
	kept, err := filepath.Glob(c.db + ".*.old")
	noError(c.t, err)
	if len(kept) == 0 && found == c.after {
		return errors.New("the old database is lost")
	}
	for _, file := range kept {
		if c.contents(file) != c.before {
			return errors.New("the copy of the old database is not whole")
		}
	}
	return nil
}

// checkBackup wants a whole copy, or none.
func (c *powerCut) checkBackup() error {
	copied := c.db + ".backup"
	if !isThere(copied) && strings.Contains(c.told, "backup made") {
		return errors.New("the backup that was made is not there")
	}
	if isThere(copied) && c.contents(copied) != c.before {
		return errors.New("the backup is not whole")
	}
	return nil
}

// checkExport wants a whole file, or none.
func (c *powerCut) checkExport() error {
	text, err := os.ReadFile(c.db + ".jsonl")
	if err != nil && strings.Contains(c.told, "pets exported") {
		return errors.New("the export that was made is not there")
	}
	if err == nil && strings.Count(string(text), "\n") != allPets {
		return fmt.Errorf("the export is not whole: %q", text)
	}
	return nil
}

// contents is all that SQL can see of a file, or what is wrong with it.
func (c *powerCut) contents(file string) string {
	info, err := os.Stat(file)
	noError(c.t, err)
	if info.Size() == 0 {
		return ""
	}
	db, err := sql.Open("sqlite", file)
	noError(c.t, err)
	defer db.Close()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		return fmt.Sprint(verdict, err)
	}
	return contents(c.t, file)
}

// url waits until a service is ready.
func (p *process) url() (url string) {
	eventually(p.t, longEnough, func() error {
		_, ready, _ := strings.Cut(p.log.String(), `"msg":"ready"`)
		url = field(ready, "address")
		if url == "" {
			return fmt.Errorf("the service is not ready: %s", p.log.String())
		}
		return nil
	})
	return url
}

// stop stops what strace runs.
func (p *process) stop() error {
	children := fmt.Sprintf("/proc/%d/task/%d/children", p.cmd.Process.Pid, p.cmd.Process.Pid)
	text, err := os.ReadFile(children)
	if err != nil {
		return err
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	return syscall.Kill(child, syscall.SIGTERM)
}

// createBy8 lets 8 clients create so many pets each, and be refused some, and stops the service.
func createBy8(p *process, key string, each int, once func(name string) string) {
	url := p.url()
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for i := range each {
				name := fmt.Sprintf("pet-%d-of-%d", i, client)
				_, err := call(url, key, "POST", "/pets", animalJSON(name), once(name))
				if err == nil && i%10 == 0 {
					const refused = `{"name":"refused","status":"lost","categoryId":1}`
					_, err = call(url, key, "POST", "/pets", refused, "")
				}
				if err != nil {
					p.t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	noError(p.t, p.stop())
}

// TestPowerCutsFindPlantedFaults builds the program with a fault, and wants a disk that shows it.
func TestPowerCutsFindPlantedFaults(t *testing.T) {
	t.Parallel()
	stock := newScene(t)
	operations := map[string]powerOperation{}
	for _, op := range powerOperations(t) {
		operations[op.name] = op
	}
	const creates = "creates of 8 clients, and a checkpoint"
	faults := []struct {
		name, file string
		operations []string // each of which has a disk that shows the fault
		changes    []string
	}{
		{
			"a copy gets its name before its sync", "files.go", []string{"an export"},
			[]string{"	if err := f.sync(f.File); err != nil {\n		return err\n	}\n", ""},
		},
		{
			// A backup shows it only elsewhere: SQLite, when it stores that the backup was made,
			// syncs the database's own folder.
			"a folder is not synced", "files.go", []string{"an export", "a restore"},
			[]string{"return syncFolder(filepath.Dir(f.path), f.sync)", "return nil"},
		},
		{
			"synchronous is NORMAL", "sqlite.go",
			[]string{
				creates, "creates under an Idempotency-Key", "a ban", "a first start",
				"key create", "key rotate", "an import", "a delete of many",
			},
			[]string{
				`"_pragma=synchronous(FULL)", "_pragma=fullfsync(1)",`,
				`"_pragma=synchronous(NORMAL)",`,
			},
		},
		{
			"ids are moved once the pages are committed", "backup.go", []string{"a restore"},
			[]string{
				"	return old, pages.raiseIDs(ctx, old)\n",
				"	return old, nil\n",
				`		err = pages.run(ctx, c.stderr, "restoring")
		target.heed(err)
	}
`, `		err = pages.run(ctx, c.stderr, "restoring")
	}
	if err == nil {
		_ = pages.backup.Finish()
		pages.backup = nil
		db := openPool(target.path, "mode=rw")
		defer db.Close()
		_, err = db.ExecContext(ctx, "UPDATE sqlite_sequence SET seq = seq + 1000000")
	}
`,
			},
		},
		{
			"a create is answered before its commit", "sqlite.go", []string{creates},
			[]string{
				`	defer func() { <-e.busy }()
	if e.failed.Load() {
`, `	if e.failed.Load() {
`,
				`		e.keepLogShort()
`, ``,
				`	_, err = e.run(context.Background(), sqlOf("COMMIT")) // and sync
	committed = err == nil
`, `	committed = true
	time.AfterFunc(time.Millisecond, func() {
		_, _ = e.run(context.Background(), sqlOf("COMMIT"))
		<-e.busy
	})
`,
			},
		},
	}
	for _, f := range faults {
		noError(t, planted.Check("..", f.file, f.changes))
	}
	for _, fault := range planted.Some(t.Name(), 3, faults) {
		t.Run(fault.name, func(t *testing.T) {
			program, err := planted.Build("..", t.TempDir(), fault.file, fault.changes)
			noError(t, err)
			for _, name := range fault.operations {
				tried, err := operations[name].cutPower(t, stock, program, 2000)
				if err == nil {
					t.Errorf("no disk of %d shows it, of %s", tried, name)
				}
				t.Logf("disk %d of %s: %v", tried, name, err)
			}
		})
	}
}
