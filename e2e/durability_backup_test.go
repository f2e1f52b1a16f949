package e2e

import (
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// target makes what stands where a backup is to be written to, in a folder, beside the database of
// a service.
type target func(t *testing.T, folder, db string) (name string)

// TestABackupOverwritesNothing backs up onto what exists, or has a log beside it. All of it stays
// as it was, and the service goes on.
func TestABackupOverwritesNothing(t *testing.T) {
	own := func(suffix string) target {
		return func(_ *testing.T, _, db string) string { return db + suffix }
	}
	linked := func(link func(from, to string) error, suffix string) target {
		return func(t *testing.T, folder, db string) string {
			name := filepath.Join(folder, "link")
			noError(t, link(db+suffix, name))
			return name
		}
	}
	made := func(make func(path string) error) target {
		return func(t *testing.T, folder, _ string) string {
			name := filepath.Join(folder, "target.db")
			noError(t, make(name))
			return name
		}
	}
	beside := func(suffix string) target {
		return made(func(path string) error {
			return os.WriteFile(path+suffix, []byte("what another program has left"), 0o600)
		})
	}
	const partial = "another copy runs, or was stopped; remove it"
	for name, c := range map[string]struct {
		target target
		says   string
	}{
		"an older copy":                    {beside(""), "target.db exists"},
		"the database":                     {own(""), "petstore.db exists"},
		"its -wal":                         {own("-wal"), "petstore.db-wal exists"},
		"its -lock":                        {own("-lock"), "petstore.db-lock exists"},
		"a symbolic link to it":            {linked(os.Symlink, ""), "link exists"},
		"a symbolic link to nothing":       {linked(os.Symlink, ".nowhere"), "link exists"},
		"a hard link to it":                {linked(os.Link, ""), "link exists"},
		"a name with a -wal beside it":     {beside("-wal"), "target.db-wal exists"},
		"a name with a -journal beside it": {beside("-journal"), "target.db-journal exists"},
		"a name with a .partial beside it": {beside(".partial"), partial},
		"a name with a link for a .partial": {made(func(path string) error {
			return os.Symlink(
				"elsewhere", path+".partial")
		}), partial},
		"a folder": {made(func(path string) error { return os.Mkdir(path, 0o700) }),
			"target.db exists"},
		"a named pipe": {made(func(path string) error { return syscall.Mkfifo(path, 0o600) }),
			"target.db exists"},
		"a device": {func(*testing.T, string, string) string { return os.DevNull },
			"/dev/null exists"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			target := c.target(t, t.TempDir(), s.db)
			for _, args := range [][]string{{"backup", "-db", s.db, target},
				{"pet", "export", "-db", s.db, target}} {
				before, missing := os.Lstat(target)
				beside, err := os.ReadDir(filepath.Dir(target))
				noError(t, err)
				fails(t, program(args...), c.says)
				after, err := os.Lstat(target)
				if (missing == nil) != (err == nil) || err == nil && (!os.SameFile(before, after) ||
					before.Size() != after.Size()) {
					t.Errorf("after %s the target is another one: %v", args[0], err)
				}
				if left, err := os.ReadDir(filepath.Dir(target)); err != nil ||
					len(left) != len(beside) {
					t.Errorf("of %d files there are %d after %s, %v", len(beside), len(left),
						args[0], err)
				}
			}
			if r, err := call(s.url, s.key, "POST", "/pets", rex, ""); err != nil ||
				r.status != http.StatusCreated {
				t.Errorf("afterwards the service stores no pet: %v, %v", r, err)
			}
		})
	}
}

// TestAFileSystemWithoutLinks, such as that of a USB stick, takes a backup and an export, and loses
// nothing either. The new name is on the disk before the command ends.
func TestAFileSystemWithoutLinks(t *testing.T) {
	s, folder, calls := start(t), t.TempDir(), filepath.Join(t.TempDir(), "calls")
	linkless := func(args ...string) *process {
		cmd := program(args...)
		strace := []string{"-f", "-qq", "-y", "-o", calls, "-e",
			"trace=link,linkat,rename,renameat,renameat2,fsync",
			"-e", "inject=link,linkat:error=EPERM"}
		traced := exec.Command("strace", append(strace, cmd.Args...)...)
		traced.Env = cmd.Env
		return launch(t, traced)
	}
	namedAndSynced := regexp.MustCompile(`(?s)rename\w*\(.*fsync\(\d+<` + regexp.QuoteMeta(folder) +
		`>`)
	copied, exported := filepath.Join(folder, "copy.db"), filepath.Join(folder, "pets.jsonl")
	for _, args := range [][]string{{"backup", "-db", s.db, copied}, {"pet", "export", "-db", s.db,
		exported}} {
		if p := linkless(args...); p.status() != 0 {
			t.Errorf("without links: %s", p.told())
		}
		made, err := os.ReadFile(calls)
		noError(t, err)
		if !namedAndSynced.Match(made) {
			t.Errorf("%s does not sync the folder after it has named the file:\n%s", args[0], made)
		}
		before := files(t, folder)
		if p := linkless(args...); p.status() != 1 || !strings.Contains(p.log.String(),
			"exists, and nothing is overwritten") {
			t.Errorf("onto what exists, without links: %s", p.told())
		}
		if after := files(t, folder); !maps.Equal(before, after) {
			t.Errorf("%d files have become %d, or others", len(before), len(after))
		}
	}
	if keys := numberIn(t, copied, "SELECT count(*) FROM api_keys"); keys != 1 {
		t.Errorf("the copy holds %d keys", keys)
	}
	if left := files(t, folder); len(left) != 2 {
		t.Errorf("there are %d files, want the copy and the export", len(left))
	}
}
