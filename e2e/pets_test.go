package e2e

// Proven here alone: imports, exports and deletions of 15,000 to 100,000 pets, on a file and on a
// cluster, that are killed, repeated, and looked at through a service.

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// petFile is a file to import. Its pets are numbered from 1.
func petFile(t *testing.T, pets int) string {
	t.Helper()
	var b bytes.Buffer
	for i := 1; i <= pets; i++ {
		fmt.Fprintf(&b, `{"name":"imported %d","categoryId":%d,"status":%q}`+"\n", i, -i,
			[]string{"available", "pending", "sold"}[i%3])
	}
	file := filepath.Join(t.TempDir(), "pets.jsonl")
	noError(t, os.WriteFile(file, b.Bytes(), 0o600))
	return file
}

// importing is a process that imports a file.
func (s *server) importing(file string) (cmd *exec.Cmd, stderr *logBuffer) {
	s.t.Helper()
	cmd, stderr = s.program("pet", "import", "-db", s.db, file), &logBuffer{}
	cmd.Stderr = stderr
	noError(s.t, cmd.Start())
	return cmd, stderr
}

// imported is how many pets of all imports are stored, as the imports know it.
func (s *server) imported(t *testing.T, on engine) (n int64) {
	t.Helper()
	const statement = "SELECT coalesce(sum(value), 0) FROM counters WHERE name GLOB 'import *'"
	if on.cluster == nil {
		return query[int64](t, s.db, statement)
	}
	return int64(on.cluster.number(statement))
}

// checkImported checks that the export holds each pet of the file once, in the
// file's order, and returns how many others it holds.
func (s *server) checkImported(t *testing.T, file string) (others int) {
	t.Helper()
	content, err := os.ReadFile(file)
	noError(t, err)
	want := strings.Split(strings.TrimSpace(string(content)), "\n")
	place, last := 0, int64(0)
	for line := range strings.Lines(s.command("pet", "export", "-db", s.db)) {
		p := decode[pet](t, line)
		if p.ID <= last {
			t.Fatalf("the id %d comes after %d", p.ID, last)
		}
		last = p.ID
		if !strings.HasPrefix(p.Name, "imported ") {
			others++
			continue
		}
		if got := fmt.Sprintf(`{"name":%q,"categoryId":%d,"status":%q}`, p.Name, p.CategoryID,
			p.Status); place >= len(want) || got != want[place] {
			t.Fatalf("pet %d of the import is %s", place+1, got)
		}
		place++
	}
	if place != len(want) {
		t.Errorf("%d pets of %d are there", place, len(want))
	}
	return others
}

// TestAnImportThatIsKilledIsCompleteAtTheEnd: it is killed ten times, beside a service that
// adds pets, and at the end no pet is missing, none is there twice, and their order is kept.
func TestAnImportThatIsKilledIsCompleteAtTheEnd(t *testing.T) {
	t.Parallel()
	onBothEngines(t, func(t *testing.T, on engine) {
		s := on.start(t)
		stop := keepWriting(t, s, 2)
		const pets = 100_000
		file := petFile(t, pets)
		for i := range int64(10) {
			before := s.imported(t, on)
			cmd, _ := s.importing(file)
			for deadline := time.Now().Add(time.Minute); s.imported(t, on) <= before+500*i; {
				if time.Now().After(deadline) {
					t.Fatal("the import does not get on")
				}
			}
			kill(t, cmd)
		}
		left := s.imported(t, on)
		if left <= 22_500 || left >= pets { // before each of the kills, 500, 1,000 … and more
			t.Fatalf("after the kills %d of %d pets are stored", left, pets)
		}
		cmd, stderr := s.importing(file)
		if err := cmd.Wait(); err != nil || !strings.Contains(stderr.String(),
			fmt.Sprintf(`"alreadyStored":%d`, left)) {
			t.Fatalf("the last import: %v\n%s", err, stderr)
		}
		t.Logf("after ten kills %d of %d pets were stored", left, pets)
		created := stop()
		if others := s.checkImported(t, file); int64(others) != created {
			t.Errorf("%d pets of others are there, and %d were created", others, created)
		}
		if on.cluster == nil {
			s.stop()
			checkIntegrity(t, s.db)
		}
	})
}

// TestPetsGoOutAndComeIn: what one database exports another imports and exports, the same but for
// ids. A service shows it within a second.
func TestPetsGoOutAndComeIn(t *testing.T) {
	onBothEngines(t, func(t *testing.T, on engine) {
		s := on.start(t)
		file := petFile(t, 15_000)
		shows := func(target, want string) {
			t.Helper()
			eventually(t, time.Second, func() error {
				r, err := call(s.url, s.key, "GET", target, "", "")
				noError(t, err)
				if !strings.Contains(r.body, want) {
					return fmt.Errorf("%s is %s, without %s", target, r.body, want)
				}
				return nil
			})
		}
		s.addPet(rex)
		shows("/pets?limit=2", "Rex")
		s.command("pet", "import", "-db", s.db, file)
		shows("/pets?limit=2", "imported 1")
		exported := filepath.Join(t.TempDir(), "all.jsonl")
		s.command("pet", "export", "-db", s.db, exported)
		other := start(t)
		cmd := other.program("pet", "import", "-db", other.db, "-")
		cmd.Stdin = strings.NewReader(s.command("pet", "export", "-db", s.db))
		runs(t, cmd)
		if a, b := s.command("pet", "export", "-db", s.db), other.command("pet", "export", "-db",
			other.db); a != b {
			t.Error("what was imported is not what was exported")
		}
		content, err := os.ReadFile(exported)
		if err != nil || string(content) != s.command("pet", "export", "-db", s.db) {
			t.Errorf("a file gets another export than stdout, %v", err)
		}
	})
}

// TestAKilledImportLeavesNoFile: the one in which its pets wait has no name.
func TestAKilledImportLeavesNoFile(t *testing.T) {
	s, folder := start(t), t.TempDir()
	cmd := program("pet", "import", "-db", s.db, "-")
	cmd.Env = append(cmd.Env, "TMPDIR="+folder)
	stdin, err := cmd.StdinPipe()
	noError(t, err)
	noError(t, cmd.Start())
	_, err = io.WriteString(stdin, strings.Repeat(rex+"\n", 100_000)) // more than a pipe holds
	noError(t, err)
	kill(t, cmd)
	if left := files(t, folder); len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
}

// TestDeletedPetsComeBackBesideAService, 100,000 of them, under their ids: an export is the same as
// before, the service shows it within a second, and new pets get new ids.
func TestDeletedPetsComeBackBesideAService(t *testing.T) {
	t.Parallel()
	onBothEngines(t, func(t *testing.T, on engine) {
		const pets = 100_000
		s := on.start(t)
		s.command("pet", "import", "-db", s.db, petFile(t, pets))
		before := s.command("pet", "export", "-db", s.db)
		first := func(want int64, within time.Duration) {
			t.Helper()
			eventually(t, within, func() error {
				r, err := call(s.url, s.key, "GET", "/pets?limit=1", "", "")
				noError(t, err)
				if got := decode[[]pet](t, r.body); len(got) == 0 || got[0].ID != want {
					return fmt.Errorf("the first page is %s, want pet %d", r.body, want)
				}
				return nil
			})
		}
		first(1, time.Second)
		remove := s.program("pet", "delete", "-db", s.db, "-")
		var ids strings.Builder
		for id := 1; id < pets; id++ { // all but the last
			fmt.Fprintln(&ids, id)
		}
		remove.Stdin = strings.NewReader(ids.String())
		deleted, err := remove.Output()
		if err != nil || !strings.HasPrefix(before, string(deleted)) {
			t.Fatalf("pet delete: %v, and prints %.200s", err, deleted)
		}
		first(pets, time.Second)
		file := filepath.Join(t.TempDir(), "deleted.jsonl")
		noError(t, os.WriteFile(file, deleted, 0o600))
		killed := s.program("pet", "import", "-db", s.db, "-keep-ids", file)
		noError(t, killed.Start())
		first(1, longEnough) // it looks at all ids first
		kill(t, killed)
		s.command("pet", "import", "-db", s.db, "-keep-ids", file)
		if after := s.command("pet", "export", "-db", s.db); after != before {
			t.Error("an export is not as before")
		}
		first(1, time.Second)
		created, err := call(s.url, s.key, "POST", "/pets", rex, "")
		noError(t, err)
		if p := decode[pet](t, created.body); p.ID != pets+1 {
			t.Errorf("a new pet gets the id %d", p.ID)
		}
	})
}
