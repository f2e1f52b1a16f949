package e2e

// Proven here alone: copies on a file system that makes no links.

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAFileSystemWithoutLinks, such as that of a USB stick, takes a backup and an export, and loses
// nothing either. The new name is on the disk before the command ends.
func TestAFileSystemWithoutLinks(t *testing.T) {
	s, folder, calls := start(t), t.TempDir(), filepath.Join(t.TempDir(), "calls")
	linkless := func(args ...string) *process {
		return launch(t, strace(program(args...), calls,
			"-e", "trace=link,linkat,rename,renameat,renameat2,fsync",
			"-e", "inject=link,linkat:error=EPERM"))
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
	if keys := query[int64](t, copied, "SELECT count(*) FROM api_keys"); keys != 1 {
		t.Errorf("the copy holds %d keys", keys)
	}
	if left := files(t, folder); len(left) != 2 {
		t.Errorf("there are %d files, want the copy and the export", len(left))
	}
}
