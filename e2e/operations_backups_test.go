package e2e

// Proven here alone: the nightly copies of a machine whose clock was a year ahead for two weeks are
// neither kept nor restored.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// nights are those of a machine whose clock is a test's.
type nights struct {
	t       *testing.T
	db      string
	folder  string // of the copies
	tools   string // what the commands find first
	clock   time.Time
	command string // of the unit
}

// newNights has a `date` that tells the clock, and a petstore whose copies are of that time.
func newNights(t *testing.T) *nights {
	t.Helper()
	n := &nights{t: t, folder: t.TempDir(), tools: t.TempDir(), db: filepath.Join(t.TempDir(),
		"petstore.db"), clock: time.Date(2026, time.March, 1, 3, 0, 0, 0, time.UTC)}
	for name, script := range map[string]string{
		"date": `exec /bin/date -d @$(cat "$0.now") "$@"`,
		"petstore": `"` + binary + `" "$@" && { [ "$1" != backup ] || ` +
			`touch -d @$(cat "${0%/*}/date.now") "$2"; }`,
	} {
		noError(t, os.WriteFile(filepath.Join(n.tools, name), []byte("#!/bin/sh\n"+script+"\n"),
			0o700))
	}
	unit := readFile(t, "../docs/deploy/petstore-backup.service")
	lines := findAll(`(?m)^ExecStart=/bin/sh -ec '(.*)'$`, unit)
	if len(lines) != 1 {
		t.Fatalf("the unit has the commands %q", lines)
	}
	n.command = strings.NewReplacer("%%", "%", "/usr/local/bin/petstore", "petstore").
		Replace(lines[0])
	return n
}

// run runs a command of a shell in the folder of the copies.
func (n *nights) run(shell ...string) (stderr string) {
	n.t.Helper()
	now := fmt.Appendln(nil, n.clock.Unix())
	noError(n.t, os.WriteFile(filepath.Join(n.tools, "date.now"), now, 0o600))
	cmd := exec.Command(shell[0], shell[1:]...)
	cmd.Dir = n.folder
	cmd.Env = append(os.Environ(), "PATH="+n.tools+":"+os.Getenv("PATH"), "PETSTORE_DB="+n.db)
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%q: %v\n%s", shell, err, out)
	}
	return string(out)
}

// pass lets nights pass. In each a pet is added, and a copy made: it returns their names.
func (n *nights) pass(count int) (made []string) {
	n.t.Helper()
	for range count {
		n.clock = n.clock.AddDate(0, 0, 1)
		file := filepath.Join(n.tools, "pets.jsonl")
		noError(n.t, os.WriteFile(file, []byte(animalJSON(n.clock.String())), 0o600))
		(&server{t: n.t}).command("pet", "import", "-db", n.db, file)
		n.run("/bin/sh", "-ec", n.command)
		name := "petstore-" + n.clock.Format("20060102T150405Z") + ".db"
		if kept := n.kept(); !slices.Contains(kept, name) || len(kept) > 14 {
			n.t.Fatalf("after %s these %d are kept: %q", name, len(kept), kept)
		}
		made = append(made, name)
	}
	return made
}

// kept are the names of the copies that are there.
func (n *nights) kept() (names []string) {
	for name := range files(n.t, n.folder) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestACopyOfAClockThatWasWrongIsNeitherKeptNorRestored: for 15 nights the clock is a year ahead,
// and then right again.
func TestACopyOfAClockThatWasWrongIsNeitherKeptNorRestored(t *testing.T) {
	t.Parallel()
	n := newNights(t)
	(&server{t: t, db: n.db}).newKey()
	n.pass(2)
	n.clock = n.clock.AddDate(1, 0, 0)
	wrong := n.pass(15)
	n.clock = n.clock.AddDate(-1, 0, 0)
	right := n.pass(1)

	var restore []string
	for _, b := range readDocument(t, "docs/operating.md").blocks {
		if strings.Contains(b.text(), "\nLATEST=") {
			restore = slices.DeleteFunc(b.lines, func(line string) bool {
				return strings.HasPrefix(line, "systemctl ")
			})
		}
	}
	commands := strings.NewReplacer("/var/backups", n.folder, "/var/lib/petstore/petstore.db",
		n.db).Replace(strings.Join(restore, "\n"))
	said := n.run("bash", "-ec", commands)
	for _, name := range wrong[2:] { // all that are kept still
		if !strings.Contains(said, "later than now, skipped: "+filepath.Join(n.folder, name)+"\n") {
			t.Errorf("nothing is said of %s", name)
		}
	}
	for _, part := range []string{`"msg":"database restored","pets":18,"keys":1,`,
		"/" + right[0] + `","made":"` + n.clock.Format(time.RFC3339) + `"`} {
		if !strings.Contains(said, part) {
			t.Errorf("the restore says no %s, but\n%s", part, said)
		}
	}

	right = append(right, n.pass(13)...)
	if kept := n.kept(); !slices.Equal(kept, right) {
		t.Errorf("after two weeks there are %q, want %q", kept, right)
	}
}
