package e2e

// Proven here alone: a restore on a full disk. Its scene, a database and an older copy, is that of
// other tests too.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
			mustCall(t, s, s.key, "POST", "/pets", rex)
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
func (sc *scene) restore() *exec.Cmd {
	return program("restore", "-db", sc.db, sc.copy)
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
		(SELECT seq FROM sqlite_sequence WHERE name = 'pets'),
		(SELECT seq FROM sqlite_sequence WHERE name = 'api_keys')`).
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

// strace has a command run under strace, which writes the calls that it makes into a file.
func strace(cmd *exec.Cmd, log string, options ...string) *exec.Cmd {
	watched := []string{"-f", "-qq", "-y", "-o", log}
	traced := exec.Command("strace", slices.Concat(watched, options, cmd.Args)...)
	traced.Env = cmd.Env
	return traced
}

// TestARestoreOnAFullDiskLeavesTheOldDatabase, wherever it finds that it has no more space.
func TestARestoreOnAFullDiskLeavesTheOldDatabase(t *testing.T) {
	stock := newScene(t)
	for _, c := range []struct {
		suffix string // of the file that cannot grow
		keeps  bool   // the old database was copied before
	}{{".partial", false}, {"-wal", true}} {
		sc := stock.again(t)
		p := launch(t, strace(sc.restore(), "/dev/null", "-P", sc.db+c.suffix,
			"-e", "inject=pwrite64:error=ENOSPC"))
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
