package e2e

// Proven here alone: the histories show planted faults, of which some are drawn.

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"petstore/e2e/histories/pets"
	"petstore/e2e/planted"
)

// plantedFault is a change after which the service does not do what it promises.
type plantedFault struct {
	name    string
	record  func(t *testing.T, program string) *recording // what shows it
	file    string
	changes []string // texts, each followed by what stands in its place
}

// faultTime is how long the clients of a faulty service work. It shows the fault again and again.
const faultTime = 2 * time.Second

func undisturbed(t *testing.T, program string) *recording {
	t.Helper()
	return serveFile(t, program).record(func() { time.Sleep(faultTime) })
}

func killed(t *testing.T, program string) *recording {
	t.Helper()
	s := serveFile(t, program)
	return s.record(func() { s.dieAgainAndAgain(faultTime) })
}

func onCluster(t *testing.T, program string) *recording {
	t.Helper()
	return newStorm(t, program).record(func(*recording) { time.Sleep(faultTime) })
}

// besideEarly has one service be the program under test, with a clock that is ahead.
func besideEarly(t *testing.T, program string) *recording {
	t.Helper()
	s := newStorm(t, program)
	s.setOneAhead()
	return s.record(func(*recording) { time.Sleep(faultTime) })
}

// withEarlyCommands has an operator's machine be ahead.
func withEarlyCommands(t *testing.T, program string) *recording {
	t.Helper()
	ahead, err := early()
	noError(t, err)
	s := serveFile(t, program)
	s.commands = ahead
	return s.record(func() { time.Sleep(faultTime) })
}

var plantedFaults = []plantedFault{
	{"a page is served after an edit", undisturbed, "store.go", []string{
		"p.generation != s.generation.Load()", "p.generation > s.generation.Load()",
	}},
	{"one page shows an edit, and the next one does not yet", undisturbed, "memory.go", []string{
		"if m.edits.Load() != edits {", "if m.edits.Load() > edits {",
	}},
	{"a 201 comes before the commit", killed, "store.go", []string{
		"defer close(t.ended)", "defer func() { close(t.ended) }()",
		"	results, err := s.engine.write(ctx, t.statements)\n",
		`	if len(t.statements) == 1 && t.statements[0].query == insertCreated {
		var last int64
		query := sqlOf("SELECT seq FROM sqlite_sequence WHERE name = 'pets'")
		_, _ = s.readInto(ctx, query, &last)
		pets := int64(len(t.pets))
		t.results = []result{{last + pets, pets}}
		t.err = nil
		close(t.ended)
		t.ended = make(chan struct{})
	}
	results, err := s.engine.write(ctx, t.statements)
`,
	}},
	{"a create that is repeated stores a second pet", undisturbed, "store.go", []string{
		"keyID, idempotencyKey, created-int64(recordMillis))",
		"keyID, idempotencyKey, created+int64(recordMillis))",
	}},
	{"a kill loses the last pet, and its id is given again", killed, "main.go", []string{
		"	store, err := openStore(ctx, cmd.db, openToServe, cmd.log)\n",
		`	store, err := openStore(ctx, cmd.db, openToServe, cmd.log)
	if err == nil {
		_, _ = store.write(ctx,
			sqlOf("DELETE FROM pets WHERE id = (SELECT max(id) FROM pets)"),
			sqlOf("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'pets' AND seq > 0"))
	}
`,
	}},
	{"a list skips a pet of a batch", undisturbed, "store.go", []string{
		"	t.results = results\n", `	t.results = results
	if len(t.pets) > 1 {
		skipped.Store(results[len(results)-1].lastID)
	}
`,
		"	at := place{", `	if after+1 == skipped.Load() {
		after++
	}
	at := place{`,
		"// fresh reports", `var skipped atomic.Int64

// fresh reports`,
	}},
	{"a 304 hides that a page has a next one", undisturbed, "model.go", []string{
		`mark = '+'`, `mark = '.'`,
	}},
	{"a key is good after it was revoked", undisturbed, "auth.go", []string{
		"known.generation == k.store", "known.generation <= k.store",
	}},
	{"an import tells other ids", undisturbed, "commands_pets.go", []string{
		"inserted.lastID - inserted.affected + 1", "inserted.lastID - inserted.affected + 2",
	}},
	{"a key is good from when it was made", withEarlyCommands, "keys.go", []string{
		"return k.RevokedAt == 0 && (", "return k.RevokedAt == 0 && now >= k.CreatedAt && (",
	}},
	{"a create of a later time is not known", besideEarly, "store.go", []string{
		"AND created_at > ?)`)", "AND created_at > ?4 AND created_at <= ?4 + 86400000)`)",
	}},
	{"a list is read from any node", onCluster, "rqlite.go", []string{
		"	a, err := e.try(allTries, n, path, statements)", `	from := n
		if strings.Contains(statements[len(statements)-1].query, "LIMIT ?") {
			from = e.nodes[time.Now().UnixMicro()%int64(len(e.nodes))]
			path = "/db/query?level=none" // so that nodes respond by themselves
		}
		a, err := e.try(allTries, from, path, statements)`,
	}},
}

// TestHistoriesShowPlantedFaults makes copies of the service, each with a fault, and looks whether
// their histories are rejected. It draws them.
func TestHistoriesShowPlantedFaults(t *testing.T) {
	t.Parallel()
	for _, f := range plantedFaults {
		noError(t, planted.Check("..", f.file, f.changes))
	}
	for _, f := range planted.Some(t.Name(), 3, plantedFaults) {
		t.Run(f.name, func(t *testing.T) {
			program, err := planted.Build("..", t.TempDir(), f.file, f.changes)
			noError(t, err)
			for number := range 20 {
				rejected := false
				t.Run(fmt.Sprint(number), func(t *testing.T) {
					r := f.record(t, program)
					operations := r.Operations()
					verdict, err := pets.Check(operations)
					noError(t, err)
					rejected = !verdict.Legal || !pets.CheckKeys(r.keys.Operations())
					t.Logf("of %d operations: %+v", len(operations), verdict)
					if rejected {
						noError(t, pets.Draw(operations, filepath.Join(t.TempDir(), "page.html")))
					}
				})
				if rejected || t.Failed() {
					return
				}
			}
			t.Error("20 histories do not show the fault")
		})
	}
}
