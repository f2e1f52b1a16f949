package histories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fault is a change after which the service does not do what it promises.
type fault struct {
	name    string
	work    func(*session) // what shows it
	file    string
	changes []string // texts, each followed by what stands in its place
}

// Each history of a faulty service is short, since it shows the fault again and again.
func undisturbed(s *session) { s.work(3 * time.Second) }
func killed(s *session)      { s.workThroughKills(3 * time.Second) }

var faults = []fault{
	{"a page is served after an edit", undisturbed, "store.go", []string{
		"p.editsSeen != s.editsSeen.Load()", "p.editsSeen > s.editsSeen.Load()",
	}},
	{"a 201 comes before the commit", killed, "store.go", []string{
		"defer close(t.ended)", "defer func() { close(t.ended) }()",
		"	results, err := s.engine.write(ctx, statements)\n", `	if added > 0 && len(t.statements) == 0 {
		var last int64
		query := sqlOf("SELECT seq FROM sqlite_sequence WHERE name = 'pets'")
		_, _ = s.readInto(ctx, query, &last)
		t.firstID, t.err = last+1, nil
		close(t.ended)
		t.ended = make(chan struct{})
	}
	results, err := s.engine.write(ctx, statements)
`,
	}},
	{"a create that is repeated stores a second pet", undisturbed, "store.go", []string{
		"keyID, idempotencyKey, created-int64(recordMillis))",
		"keyID, idempotencyKey, created+int64(recordMillis))",
	}},
	{"a kill loses the last pet, and its id is given again", killed, "main.go", []string{
		"	pets, err := openStore(opening, cmd.db, openToServe, cmd.log)\n",
		`	pets, err := openStore(opening, cmd.db, openToServe, cmd.log)
	if err == nil {
		_, _ = pets.write(opening,
			sqlOf("DELETE FROM pets WHERE id = (SELECT max(id) FROM pets)"),
			sqlOf("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'pets' AND seq > 0"))
	}
`,
	}},
	{"a list skips a pet of a batch", undisturbed, "store.go", []string{
		"	t.firstID = inserted.lastID - added + 1\n", `	t.firstID = inserted.lastID - added + 1
	if added > 1 {
		skipped.Store(t.firstID + 1)
	}
`,
		"	at := place{", `	if after+1 == skipped.Load() {
		after++
	}
	at := place{`,
		"// fresh reports", `var skipped atomic.Int64

// fresh reports`,
	}},
}

// TestPlantedFaultsAreRejected makes copies of the service, each with a fault, and looks whether
// their histories are rejected. It prints the shortest history that shows the fault.
func TestPlantedFaultsAreRejected(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			program := build(t, f.plant(t))
			for histories := 1; histories <= 20; histories++ {
				operations := play(t, program, f.work)
				if t.Failed() {
					return
				}
				if !legal(t, operations) {
					t.Logf("history %d, of %d operations, is rejected:\n%s",
						histories, len(operations), describe(shortest(t, operations)))
					return
				}
			}
			t.Error("20 histories do not show the fault")
		})
	}
}

// plant copies the service with the fault in it, and returns the folder.
func (f fault) plant(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	list := exec.Command("git", "ls-files", "*.go", "go.mod", "go.sum", "web", "schema")
	list.Dir = "../.."
	listing, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(listing)) {
		if strings.HasPrefix(name, "e2e/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		content, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == f.file {
			content = []byte(f.change(t, string(content)))
		}
		copied := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(copied), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func (f fault) change(t *testing.T, source string) string {
	t.Helper()
	for i := 0; i < len(f.changes); i += 2 {
		if strings.Count(source, f.changes[i]) != 1 {
			t.Fatalf("%s does not have %q once", f.file, f.changes[i])
		}
		source = strings.Replace(source, f.changes[i], f.changes[i+1], 1)
	}
	return source
}
