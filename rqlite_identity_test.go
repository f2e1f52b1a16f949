package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// otherDatabases are what nodes may hold in the place of the database that was opened.
func otherDatabases(t *testing.T) map[string]string {
	t.Helper()
	older := append(slices.Clone(migrations[:4]), applicationMark, "PRAGMA user_version = 4")
	others := map[string]string{}
	for what, statements := range map[string][]string{
		"nothing":             {"PRAGMA journal_mode=WAL"},
		"an older petstore's": older,
		"another program's":   {"CREATE TABLE pets (name)", "PRAGMA application_id = 7"},
	} {
		others[what] = databasePath(t)
		makeOtherDatabase(t, others[what], statements...)
	}
	others["a petstore's"], _ = fileToCopy(t)
	return others
}

// TestAServiceThatMeetsAnotherDatabaseStopsForGood: it shows nothing, writes nothing, and says so,
// also when the first database is back, and also if there was no leader before.
func TestAServiceThatMeetsAnotherDatabaseStopsForGood(t *testing.T) {
	for what, other := range otherDatabases(t) {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
				shop := newClusterShop(t, c, s)
				mustCreate(t, s, rex)
				mustCreate(t, s, rex)
				mustCreate(t, s, rex)
				stop := runBackground(shop.service, newOperator(shop.service), nil)
				shop.get("/v1/pets?limit=2").lists(1, 2) // which is remembered, and so is the key
				shop.get("/readyz").is(200)
				c.lead(-1)
				time.Sleep(time.Second)
				shop.get("/v1/pets?limit=2").lists(1, 2)

				first := c.path
				for _, path := range []string{other, first} {
					c.mu.Lock()
					c.swap(path)
					c.mu.Unlock()
					c.lead(0)
					time.Sleep(5 * time.Second)
					shop.get("/v1/pets?limit=2").is(503)
					shop.get("/v1/pets/1").is(503)
					shop.post(rexBody).is(503)
					shop.get("/readyz").is(503)
					if n := c.number("SELECT total_changes()"); n != 0 {
						t.Errorf("%d rows are changed in %s", n, path)
					}
				}
				wantTime(t, "the stop", 0, 0, errOtherDatabase, stop)
				if n := strings.Count(c.log.String(), `"msg":"stopped for good"`); n != 1 {
					t.Errorf("%d times the log says so: %s", n, c.log)
				}
			})
		})
	}
}

// TestWhatRunsGoesOverToNoOtherCluster, and a start on nodes of two is refused, be it a command's.
func TestWhatRunsGoesOverToNoOtherCluster(t *testing.T) {
	for what, isUsed := range map[string]bool{"empty": false, "used": true} {
		t.Run(what, func(t *testing.T) {
			one, other := newCluster(t, 1), newCluster(t, 2)
			addresses := one.addresses() + "," + other.addresses()
			if isUsed {
				openCluster(t, other, openOrMake)
			}
			for _, n := range other.nodes {
				n.stop()
			}
			s, _ := openClusterAt(t, addresses, openToServe)
			mustCreate(t, s, rex)
			for _, n := range other.nodes {
				n.start()
			}
			_, _, err := petstore(t, nil, "key", "create", "-db", addresses)
			wantOneLine(t, err, false, "cannot open the database", "is another than that of")

			one.nodes[0].stop()
			before := other.number("SELECT total_changes()")
			errs := []error{
				errorOf(s.page("", 1, 0)), // first: a write may still meet a connection that breaks
				errorOf(s.createPet(rex)),
				errorOf(s.edit(t.Context(), revokeKey(1, 1))),
			}
			for _, err := range errs {
				if !errors.Is(err, errOtherDatabase) || errors.Is(err, errOutcome) {
					t.Errorf("the error is %v", err)
				}
			}
			if n := other.number("SELECT total_changes()"); n != before {
				t.Errorf("%d rows of the other cluster are changed", n-before)
			}
		})
	}
}

// TestNodesOfTwoClustersAreRefusedUnchanged, in either order, whichever of them is found first.
func TestNodesOfTwoClustersAreRefusedUnchanged(t *testing.T) {
	file, _ := fileToCopy(t)
	held := otherDatabases(t)
	for _, pair := range [][]string{
		{"a petstore's", "nothing"},
		{"a petstore's", "an older petstore's"},
		{"an older petstore's", "nothing"},
		{"an older petstore's", "another program's"},
	} {
		for run := range 4 {
			t.Run(fmt.Sprint(pair, run), func(t *testing.T) {
				t.Parallel()
				clusters := []*fakeCluster{newCluster(t, 1), newCluster(t, 2)}
				for i, c := range clusters {
					hold(c, held[pair[(i+run)%2]])
				}
				addresses := clusters[0].addresses() + "," + clusters[1].addresses()
				_, _, errRestore := petstore(t, nil, "restore", "-db", addresses, file)
				_, _, errList := petstore(t, nil, "key", "list", "-db", addresses)
				if errRestore == nil || errList == nil {
					t.Errorf("the errors are %v and %v", errRestore, errList)
				}
				wantUnchanged(t, clusters...)
			})
		}
	}
}

// TestTwoEmptyClustersAreToldApart at the start of a service, once one of them has its schema.
func TestTwoEmptyClustersAreToldApart(t *testing.T) {
	addresses := newCluster(t, 1).addresses() + "," + newCluster(t, 2).addresses()
	_, err := openStore(t.Context(), addresses, openToServe, testLog)
	wantOneLine(t, err, false, "cannot open the database", "is another than that of")
}

// TestANodeThatDoesNotAgreeHasToAnswer, unlike one that never does.
func TestANodeThatDoesNotAgreeHasToAnswer(t *testing.T) {
	for what, answers := range map[string]int64{"one that did not agree": 2, "one that never did": 0} {
		t.Run(what, func(t *testing.T) {
			file, _ := fileToCopy(t)
			one, other := newCluster(t, 1), newCluster(t, 1)
			openCluster(t, one, openOrMake)
			hold(other, file)
			other.lead(-1) // so that the node of one is in use
			var asked atomic.Int64
			other.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/status" || asked.Add(1) > answers {
					return false
				}
				other.mu.Lock()
				defer other.mu.Unlock()
				other.statements(w, r)
				return true
			})
			addresses := one.addresses() + "," + other.addresses()
			_, err := openStore(t.Context(), addresses, openToServe, testLog)
			if isRefused := err != nil; isRefused != (answers > 0) {
				t.Errorf("the start says %v", err)
			}
		})
	}
}

// TestALoadAsksTheNodeThatIsFoundLast, which may be of another cluster than the one before, and all
// others, which have to answer.
func TestALoadAsksTheNodeThatIsFoundLast(t *testing.T) {
	for what, want := range map[string]string{
		"used":  "it holds or held pets or keys",
		"empty": "leader not found", // of the first cluster
	} {
		t.Run(what, func(t *testing.T) {
			file, _ := fileToCopy(t)
			one, other := newCluster(t, 1), newCluster(t, 1)
			if what == "used" {
				hold(other, file)
			}
			other.nodes[0].stop()
			urls := nodeURLs(one.addresses() + "," + other.addresses())
			e, err := openRqlite(t.Context(), urls, openExisting, testLog)
			must(t, err)
			defer e.Close()
			other.nodes[0].start()
			one.lead(-1)
			err = e.load(t.Context(), strings.NewReader(readText(t, file)), 1)
			wantOneLine(t, err, false, want)
			wantUnchanged(t, one, other)
		})
	}
}

// hold puts a copy of a file behind the nodes.
func hold(c *fakeCluster, file string) {
	path := databasePath(c.t)
	must(c.t, os.WriteFile(path, []byte(readText(c.t, file)), 0o600))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.swap(path)
}

// wantUnchanged checks that clusters were only asked.
func wantUnchanged(t *testing.T, clusters ...*fakeCluster) {
	t.Helper()
	for _, c := range clusters {
		for _, request := range c.arrived() {
			if !strings.Contains(request, "/db/query?") {
				t.Errorf("what was sent is %q", request)
			}
		}
	}
}

// TestAMigrationBetweenTwoAnswersMakesNoTwoClusters: the last of three nodes answers after it.
func TestAMigrationBetweenTwoAnswersMakesNoTwoClusters(t *testing.T) {
	c := newCluster(t, 3)
	var answered sync.WaitGroup
	answered.Add(2)
	var asked, migrated atomic.Int64
	c.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/db/query" || asked.Add(1) > 3 {
			return false
		}
		if n.number != 2 {
			c.mu.Lock()
			defer c.mu.Unlock()
			n.serve(w, r)
			answered.Done()
			return true
		}
		answered.Wait()
		migrated.Add(1)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, st := range upgrade(0, 7) {
			c.mustExec(st.query, st.args...)
		}
		return false
	})
	s, _ := openCluster(t, c, openOrMake)
	if id := clusterEngine(s).identity; id != 7 || migrated.Load() != 1 {
		t.Errorf("the identity is %d after %d migrations", id, migrated.Load())
	}
}

// TestAnUpgradeKeepsTheIdentity, since services go on beside it.
func TestAnUpgradeKeepsTheIdentity(t *testing.T) {
	s := newStore(t)
	before := readNumber(t, s, identityQuery)
	_, err := s.write(t.Context(), upgrade(len(migrations), before/2+1)[1:]...) // [0] is empty
	must(t, err)
	if after := readNumber(t, s, identityQuery); after != before {
		t.Errorf("the identity was %d and is %d", before, after)
	}
}

// TestEachRestoreMakesAnotherDatabase, into a file and into a cluster, of copies of all versions.
func TestEachRestoreMakesAnotherDatabase(t *testing.T) {
	seen := map[int64]bool{}
	note := func(identity int64) {
		t.Helper()
		if identity < 1 || seen[identity] {
			t.Errorf("the identity %d is seen again, or none", identity)
		}
		seen[identity] = true
	}
	present, _ := fileToCopy(t)
	copies := []string{present}
	note(readNumber(t, openDatabase(t, present), identityQuery))
	for version := 1; version < len(migrations); version++ {
		copied := databasePath(t)
		statements := append(slices.Clone(migrations[:version]), applicationMark,
			fmt.Sprint("PRAGMA user_version = ", version))
		makeOtherDatabase(t, copied, statements...)
		copies = append(copies, copied)
	}
	for _, copied := range copies {
		file := databasePath(t)
		for range 2 {
			mustRun(t, "restore", "-db", file, copied)
			s := openDatabase(t, file)
			note(readNumber(t, s, identityQuery))
			must(t, s.Close())
			c := newCluster(t, 1)
			mustRun(t, "restore", "-db", c.addresses(), copied)
			note(c.number(identityQuery))
		}
	}
}
