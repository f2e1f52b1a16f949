package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// target makes the file, or the name, that a backup is to be written to, beside
// two services: one that has nothing to do with it, and that of the source.
type target func(t *testing.T, served, source string) string

// TestABackupRefusesATargetThatIsInUse backs up onto what must not be replaced:
// a database that is served, by any of its names, what belongs to the source,
// what SQLite would open together with the log of another database, and what is
// no file. The target stays as it was, and both services go on.
func TestABackupRefusesATargetThatIsInUse(t *testing.T) {
	place := func(t *testing.T) string { return filepath.Join(t.TempDir(), "target.db") }
	served := func(suffix string) target {
		return func(_ *testing.T, served, _ string) string { return served + suffix }
	}
	source := func(suffix string) target {
		return func(_ *testing.T, _, source string) string { return source + suffix }
	}
	by := func(link func(from, to string) error, file target) target {
		return func(t *testing.T, served, source string) string {
			name := place(t)
			noError(t, link(file(t, served, source), name))
			return name
		}
	}
	olderBeside := func(suffix string) target {
		return func(t *testing.T, _, source string) string {
			name := place(t)
			succeeds(t, program("backup", "-db", source, name))
			noError(t, os.WriteFile(name+suffix, []byte("what another database has left"), 0o600))
			return name
		}
	}
	made := func(make func(path string) error) target {
		return func(t *testing.T, _, _ string) string {
			name := place(t)
			noError(t, make(name))
			return name
		}
	}
	for name, target := range map[string]target{
		"a database that another service serves":    served(""),
		"the -wal of a served database":             served("-wal"),
		"a symbolic link to a served database":      by(os.Symlink, served("")),
		"a hard link to a served database":          by(os.Link, served("")),
		"the source":                                source(""),
		"the source's -wal":                         source("-wal"),
		"the source's -shm":                         source("-shm"),
		"the source's -lock":                        source("-lock"),
		"the source's -journal, which is not there": source("-journal"),
		"a symbolic link to the source":             by(os.Symlink, source("")),
		"a hard link to the source":                 by(os.Link, source("")),
		"a symbolic link to the source's -wal":      by(os.Symlink, source("-wal")),
		"a hard link to the source's -lock":         by(os.Link, source("-lock")),
		"a copy with a -wal beside it":              olderBeside("-wal"),
		"a copy with a -journal beside it":          olderBeside("-journal"),
		"a name with a -wal left beside it": made(func(path string) error {
			return os.WriteFile(path+"-wal", []byte("what another database has left"), 0o600)
		}),
		"a folder":                    made(func(path string) error { return os.Mkdir(path, 0o700) }),
		"a named pipe":                made(func(path string) error { return syscall.Mkfifo(path, 0o600) }),
		"a symbolic link to a device": made(func(path string) error { return os.Symlink("/dev/null", path) }),
	} {
		t.Run(name, func(t *testing.T) {
			services := []*server{start(t), start(t)}
			target := target(t, services[0].db, services[1].db)
			before, missing := os.Lstat(target)
			fails(t, program("backup", "-db", services[1].db, target), target)
			after, err := os.Lstat(target)
			if (missing == nil) != (err == nil) || err == nil && (!os.SameFile(before, after) || before.Size() != after.Size()) {
				t.Errorf("the target is another one now: %v", err)
			}
			if left, _ := filepath.Glob(target + ".*"); len(left) > 0 {
				t.Errorf("%q are left behind", left)
			}
			for _, s := range services {
				if r, err := call(s.url, s.key, "POST", "/pets", rex, ""); err != nil || r.status != http.StatusCreated {
					t.Errorf("afterwards a service stores no pet: %v, %v", r, err)
				}
			}
		})
	}
}

// TestABackupReplacesAnOlderOne takes for a target what a backup may be: a new
// name, and an older copy, even with the empty log beside it that reading it may
// have left.
func TestABackupReplacesAnOlderOne(t *testing.T) {
	s, target := start(t), filepath.Join(t.TempDir(), "copy.db")
	for i := range 3 {
		noError(t, os.WriteFile(target+"-wal", nil, 0o600))
		succeeds(t, program("backup", "-db", s.db, target))
		if keys := numberIn(t, target, "SELECT count(*) FROM api_keys"); keys != int64(1+i) {
			t.Errorf("copy %d holds %d keys", 1+i, keys)
		}
		s.newKey()
	}
}
