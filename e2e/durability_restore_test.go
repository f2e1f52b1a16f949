package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// numberIn reads one number from a database that lies alone.
func numberIn(t *testing.T, file, statement string) (number int64) {
	t.Helper()
	db := database(t, file)
	defer db.Close()
	noError(t, db.QueryRow(statement).Scan(&number))
	return number
}

// scene is a database that was in use, and an older copy of it.
type scene struct {
	t        *testing.T
	db, copy string
	key      string // the first one
}

// What the two of a scene hold: the database has grown since it was copied.
const (
	copiedPets, copiedKeys = 3, 2
	allPets, allKeys       = 5, 3
)

// newScene makes both. The service was killed, so that what it stored last is
// in the log alone.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := start(t)
	sc := &scene{t, s.db, filepath.Join(filepath.Dir(s.db), "copy.db"), s.key}
	grow := func(pets int) {
		s.newKey()
		for range pets {
			if r, err := call(s.url, s.key, "POST", "/pets", rex, ""); err != nil ||
				r.status != 201 {
				t.Fatalf("a pet is not stored: %v, %v", r, err)
			}
		}
	}
	grow(copiedPets)
	s.command("backup", "-db", s.db, sc.copy)
	grow(allPets - copiedPets)
	s.kill()
	return sc
}

// again is the same in a new folder.
func (sc *scene) again(t *testing.T) *scene {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files(t, filepath.Dir(sc.db)) {
		if !strings.HasSuffix(name, "-shm") { // the index of the log is made anew
			noError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
	}
	return &scene{t, filepath.Join(dir, filepath.Base(sc.db)),
		filepath.Join(dir, filepath.Base(sc.copy)), sc.key}
}

// restore is the command.
func (sc *scene) restore(flags ...string) *exec.Cmd {
	return program(slices.Concat([]string{"restore", "-db", sc.db}, flags, []string{sc.copy})...)
}

// kept is where the old database was put, or "".
func (sc *scene) kept() string {
	sc.t.Helper()
	found, err := filepath.Glob(sc.db + ".*.old")
	noError(sc.t, err)
	if len(found) > 1 {
		sc.t.Errorf("there are several old databases: %q", found)
	}
	return strings.Join(found[:min(1, len(found))], "")
}

// holds tells which database a file is: the restored one has moved its ids on.
func (sc *scene) holds(file string) string {
	sc.t.Helper()
	verdict := ""
	db := database(sc.t, file)
	defer db.Close()
	noError(sc.t, db.QueryRow("PRAGMA integrity_check").Scan(&verdict))
	var nPets, nKeys, lastPet, lastKey int64
	noError(sc.t, db.QueryRow(`SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM api_keys),
		(SELECT seq FROM sqlite_sequence WHERE name = 'pets'), (SELECT seq FROM sqlite_sequence WHERE name = 'api_keys')`).
		Scan(&nPets, &nKeys, &lastPet, &lastKey))
	switch [5]any{verdict, nPets, nKeys, lastPet, lastKey} {
	case [5]any{"ok", int64(allPets), int64(allKeys), int64(allPets), int64(allKeys)}:
		return "old"
	case [5]any{"ok", int64(copiedPets), int64(copiedKeys), int64(copiedPets + 1_000_000),
		int64(copiedKeys + 1_000_000)}:
		return "restored"
	}
	return fmt.Sprintf("%s, with %d pets to id %d and %d keys to id %d", verdict, nPets, lastPet,
		nKeys, lastKey)
}

// TestARestorePutsTheCopyInPlaceAndKeepsTheOldDatabase restores the database
// of a service that was killed. The file stays the same, with its owner and mode.
func TestARestorePutsTheCopyInPlaceAndKeepsTheOldDatabase(t *testing.T) {
	sc := newScene(t)
	owner := uint32(os.Getuid())
	if owner == 0 {
		owner = 65534
		noError(t, os.Chown(sc.db, int(owner), int(owner)))
	}
	noError(t, os.Chmod(sc.db, 0o640))
	before, err := os.Stat(sc.db)
	noError(t, err)
	copied, err := os.ReadFile(sc.copy)
	noError(t, err)
	cmd := sc.restore()
	cmd.Env = append(cmd.Env, "PETSTORE_SKIP_IDS=7") // only the flag may do that
	p := succeeds(t, cmd)

	kept := sc.kept()
	if !regexp.MustCompile(regexp.QuoteMeta(sc.db)+`\.[-0-9T:.Z]+\.old$`).MatchString(kept) ||
		!strings.Contains(p.log.String(), kept) {
		t.Fatalf("the old database is kept as %q; %s", kept, p.told())
	}
	for name := range files(t, filepath.Dir(sc.db)) {
		if strings.HasSuffix(name, "-wal") || strings.Contains(name, ".old-") ||
			strings.Contains(name, ".partial") {
			t.Errorf("%s is left there", name)
		}
	}
	if is := sc.holds(kept); is != "old" {
		t.Errorf("the database that is kept is %s", is)
	}
	info, err := os.Stat(sc.db)
	noError(t, err)
	if stat := info.Sys().(*syscall.Stat_t); !os.SameFile(before, info) || info.Mode() != 0o640 ||
		stat.Uid != owner || stat.Gid != owner {
		t.Errorf("%s is of %d:%d with %v, want %d and %v", sc.db, stat.Uid, stat.Gid, info.Mode(),
			owner, fs.FileMode(0o640))
	}
	if info, err := os.Stat(kept); err != nil || info.Mode() != 0o600 {
		t.Errorf("the database that is kept has %v, %v", info.Mode(), err)
	}
	if is := sc.holds(sc.db); is != "restored" {
		t.Errorf("the database in place is %s", is)
	}
	if now, err := os.ReadFile(sc.copy); err != nil || !bytes.Equal(now, copied) {
		t.Errorf("the copy was changed: %v", err)
	}
}

// TestARestoredDatabaseAssignsNoIDTwice adds to it what must not get an id that a
// client of the old one may have seen.
func TestARestoredDatabaseAssignsNoIDTwice(t *testing.T) {
	for _, c := range []struct {
		name   string
		before string // done to the copy
		flags  []string
		pet    int64
		key    int64
	}{
		{"by itself", "", nil, copiedPets + 1_000_001, copiedKeys + 1_000_001},
		{"with its own distance", "", []string{"-skip-ids", "10"}, copiedPets + 11,
			copiedKeys + 11},
		{"without a distance", "", []string{"-skip-ids", "0"}, allPets + 1, allKeys + 1},
		{"of a copy without pets",
			"DELETE FROM pets; DELETE FROM sqlite_sequence WHERE name = 'pets'", nil, 1_000_001,
			copiedKeys + 1_000_001},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc := newScene(t)
			database(t, sc.copy, c.before).Close()
			succeeds(t, sc.restore(c.flags...))
			s := &server{t: t, db: sc.db}
			s.key = s.newKey()
			if id := s.listed(s.key).ID; id != c.key {
				t.Errorf("the next key has the id %d, want %d", id, c.key)
			}
			s.run()
			r, err := call(s.url, s.key, "POST", "/pets", rex, "")
			noError(t, err)
			if p := decode[pet](t, r.body); p.ID != c.pet {
				t.Errorf("the next pet has the id %d, want %d", p.ID, c.pet)
			}
		})
	}
}

// TestARestoreWhereNoDatabaseIsMakesOne is how a machine that is new begins.
func TestARestoreWhereNoDatabaseIsMakesOne(t *testing.T) {
	sc := newScene(t)
	sc.db = filepath.Join(t.TempDir(), "new.db")
	succeeds(t, sc.restore())
	if is := sc.holds(sc.db); is != "restored" || sc.kept() != "" {
		t.Errorf("the database is %s; kept is %q", is, sc.kept())
	}
	if info, err := os.Stat(sc.db); err != nil || info.Mode() != 0o600 {
		t.Errorf("the database has %v, %v", info.Mode(), err)
	}
}

// TestARestoreIsRefusedAndLeavesEverything tries what would lose or spoil a database.
func TestARestoreIsRefusedAndLeavesEverything(t *testing.T) {
	stock := newScene(t)
	for name, c := range map[string]struct {
		spoil func(sc *scene)
		file  func(sc *scene) string // what the message names
	}{
		"while a service runs": {func(sc *scene) {
			(&server{t: sc.t,
				db: sc.db}).run()
		}, (*scene).itsDB},
		"of a copy that is served": {(*scene).serveCopy, (*scene).itsCopy},
		"of a copy with a -wal": {func(sc *scene) { sc.beside("-wal") },
			(*scene).itsCopy},
		"of a copy with a -journal": {func(sc *scene) { sc.beside("-journal") },
			(*scene).itsCopy},
		"of a copy that is not there": {func(sc *scene) { noError(sc.t, os.Remove(sc.copy)) },
			(*scene).itsCopy},
		"of a folder": {func(sc *scene) {
			noError(sc.t,
				os.Remove(sc.copy))
			noError(sc.t, os.Mkdir(sc.copy, 0o700))
		}, (*scene).itsCopy},
		"of a copy that is cut off": {func(sc *scene) {
			noError(sc.t,
				os.Truncate(sc.copy, 8192))
		}, (*scene).itsCopy},
		"of a copy that is empty": {func(sc *scene) {
			noError(sc.t,
				os.Truncate(sc.copy, 0))
		}, (*scene).itsCopy},
		"of a copy with a damaged page": {(*scene).damage, (*scene).itsCopy},
		"of another program's database": {func(sc *scene) {
			noError(sc.t,
				os.Remove(sc.copy))
			recipes(sc.t, sc.copy)
		}, (*scene).itsCopy},
		"of a copy with a newer schema": {func(sc *scene) {
			database(sc.t, sc.copy,
				"PRAGMA user_version = 99").Close()
		}, (*scene).itsCopy},
		"of the database itself": {func(sc *scene) { sc.copy = sc.db }, (*scene).itsDB},
		"of a link to the database": {func(sc *scene) {
			noError(sc.t,
				os.Remove(sc.copy))
			noError(sc.t, os.Symlink(sc.db, sc.copy))
		}, (*scene).itsCopy},
		"of a hard link to the database": {func(sc *scene) {
			noError(sc.t,
				os.Remove(sc.copy))
			noError(sc.t, os.Link(sc.db, sc.copy))
		}, (*scene).itsCopy},
		"over a damaged database": {(*scene).ruin, (*scene).whatToMove},
		"where a .partial is left": {func(sc *scene) {
			noError(sc.t,
				os.WriteFile(sc.db+".partial", nil, 0o600))
		}, (*scene).itsDB},
		"over a log whose database is gone": {func(sc *scene) { noError(sc.t, os.Remove(sc.db)) },
			(*scene).itsDB},
	} {
		t.Run(name, func(t *testing.T) {
			sc := stock.again(t)
			c.spoil(sc)
			before := files(t, filepath.Dir(sc.db))
			fails(t, sc.restore(), c.file(sc))
			after := files(t, filepath.Dir(sc.db))
			for name, content := range before {
				if after[name] != content && !strings.HasSuffix(name, "-shm") {
					t.Errorf("%s is changed", name)
				}
			}
			for name, content := range after {
				_, known := before[name]
				if isLog := strings.HasSuffix(name, "-wal") && content == ""; !known && !isLog &&
					!strings.HasSuffix(name, "-shm") {
					t.Errorf("%s is left behind", name)
				}
			}
		})
	}
}

func (sc *scene) itsDB() string   { return sc.db }
func (sc *scene) itsCopy() string { return sc.copy }

func (sc *scene) whatToMove() string {
	return fmt.Sprintf("move %s, %[1]s-wal and %[1]s-shm away together", sc.db)
}

// serveCopy has a service write to the copy.
func (sc *scene) serveCopy() {
	s := &server{t: sc.t, db: sc.copy}
	s.run()
	s.newKey()
}

// ruin makes the database one that nobody can read.
func (sc *scene) ruin() {
	noError(sc.t, os.Remove(sc.db+"-wal"))
	noError(sc.t, os.WriteFile(sc.db, bytes.Repeat([]byte("damaged"), 999), 0o600))
}

func (sc *scene) beside(suffix string) {
	noError(sc.t, os.WriteFile(sc.copy+suffix, []byte("what another program has not finished"),
		0o600))
}

// damage flips what the copy's first page says, where a quick look does not see it.
func (sc *scene) damage() {
	content, err := os.ReadFile(sc.copy)
	noError(sc.t, err)
	for i := range 64 {
		content[len(content)-4096+i] ^= 0xff
	}
	noError(sc.t, os.WriteFile(sc.copy, content, 0o600))
}

// trace runs a restore under strace, which writes the calls that it makes into
// a file.
func (sc *scene) trace(log string, options ...string) *process {
	sc.t.Helper()
	cmd := sc.restore()
	strace := []string{"-f", "-qq", "-y", "-o", log, "-e", "trace=" + strings.Join(fileCalls, ",")}
	traced := exec.Command("strace", slices.Concat(strace, options, cmd.Args)...)
	traced.Env = cmd.Env
	p := launch(sc.t, traced)
	p.status()
	return p
}

// TestARestoreOnAFullDiskLeavesTheOldDatabase, wherever it finds that it has no more space.
func TestARestoreOnAFullDiskLeavesTheOldDatabase(t *testing.T) {
	stock := newScene(t)
	for _, c := range []struct {
		suffix string // of the file that cannot grow
		keeps  bool   // the old database was copied before
	}{{".partial", false}, {"-wal", true}} {
		sc := stock.again(t)
		p := sc.trace(filepath.Join(t.TempDir(), "calls"), "-P", sc.db+c.suffix, "-e",
			"inject=pwrite64:error=ENOSPC")
		if p.status() != 1 || !strings.Contains(p.log.String(), "disk is full") {
			t.Errorf("without space for %s: %s", c.suffix, p.told())
		}
		if is := sc.holds(sc.db); is != "old" {
			t.Errorf("without space for %s the database in place is %s", c.suffix, is)
		}
		if kept := sc.kept(); (kept != "") != c.keeps || c.keeps &&
			!strings.Contains(p.log.String(), "is left as "+kept) {
			t.Errorf("without space for %s a copy is left as %q; %s", c.suffix, kept, p.told())
		}
		if left, _ := filepath.Glob(sc.db + "*.partial*"); len(left) > 0 {
			t.Errorf("without space for %s %q are left", c.suffix, left)
		}
		succeeds(t, sc.restore())
		if is := sc.holds(sc.db); is != "restored" {
			t.Errorf("with space again the database in place is %s", is)
		}
	}
}
