package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fileToCopy is a file with three pets, one of them under an Idempotency-Key, and a key.
func fileToCopy(t testing.TB) (file string, token secret) {
	t.Helper()
	file = databasePath(t)
	s := openDatabase(t, file)
	token = mustInsertKey(t, s, apiKey{Name: "shop"})
	mustCreate(t, s, rex)
	mustCreate(t, s, rex)
	createOnce(t, s, 1, "Tom", testTime)
	must(t, s.Close())
	return file, token
}

// wantCopied checks that a store has what fileToCopy has made, and where its ids go on.
func wantCopied(t testing.TB, s *store, token secret, next int64) {
	t.Helper()
	if ids, _ := pageIDs(t, s, "", 20, 0); !slices.Equal(ids, []int64{1, 2, 3}) {
		t.Errorf("the pets are %v", ids)
	}
	if key := mustAuthenticate(t, newKeyring(s, false), token, testTime); key.Name != "shop" {
		t.Errorf("the key is %v", key)
	}
	if id, verdict := createOnce(t, s, 1, "Tom", testTime); id != 3 || verdict != "replayed" {
		t.Errorf("a repeat is %s %d", verdict, id)
	}
	wantNextID(t, s, next)
}

// mustRun runs a command.
func mustRun(t testing.TB, args ...string) (log string) {
	t.Helper()
	_, log, err := petstore(t, nil, args...)
	must(t, err)
	return log
}

// TestAFileGrowsIntoAClusterAndBack with all that it holds.
func TestAFileGrowsIntoAClusterAndBack(t *testing.T) {
	c := newCluster(t, 3)
	c.lead(1)
	file, token := fileToCopy(t)
	log := mustRun(t, "restore", "-db", c.addresses(), "-skip-ids", "1000", file)
	if !strings.Contains(log, `"msg":"database restored"`) || !strings.Contains(log, `"old":""`) {
		t.Errorf("the log says %s", log)
	}
	s, _ := openCluster(t, c, openToServe)
	wantCopied(t, s, token, 1004)
	c.exec("DELETE FROM pets WHERE id > 3")
	back := filepath.Join(t.TempDir(), "back.db")
	mustRun(t, "backup", "-db", c.addresses(), "-skip-ids", "10", back)
	wantCopied(t, openDatabaseFor(t, back, openToServe), token, 1015)
}

// TestTheCopyOfAClusterMovesItsIDsOn, since the cluster goes on giving out its own, unless it is
// given up.
func TestTheCopyOfAClusterMovesItsIDsOn(t *testing.T) {
	c := newCluster(t, 1)
	s, _ := openCluster(t, c, openOrMake)
	mustCreate(t, s, rex)
	dir := t.TempDir()
	mustRun(t, "backup", "-db", c.addresses(), dir+"/a")
	mustRun(t, "backup", "-db", c.addresses(), "-skip-ids", "0", dir+"/b")
	for file, want := range map[string]int64{"a": 1_000_002, "b": 2} {
		wantNextIDs(t, filepath.Join(dir, file), want, want-1)
	}
}

// TestRestoreToAClusterIsRefused where it would take something away.
func TestRestoreToAClusterIsRefused(t *testing.T) {
	const goOn = ", and nothing is overwritten; start nodes with empty folders, " +
		"and restore before a service starts on them"
	const pet = "INSERT OR REPLACE INTO pets (id, category_id, status, name) " +
		"VALUES (1, 1, 2, 'old')"
	for what, refused := range map[string]struct {
		prepare func(c *fakeCluster, s *store)
		want    string
	}{
		"a pet": {
			func(c *fakeCluster, _ *store) { c.exec(pet) },
			"it holds or held pets or keys" + goOn,
		},
		"the id of a pet that was deleted": {
			func(c *fakeCluster, _ *store) { c.exec(pet + "; DELETE FROM pets") },
			"it holds or held pets or keys" + goOn,
		},
		"a key, as a service makes it at its first start": {
			func(_ *fakeCluster, s *store) { mustInsertKey(t, s, apiKey{}) },
			"it holds or held pets or keys" + goOn,
		},
		"a pet that comes while the copy is checked": {
			func(c *fakeCluster, _ *store) {
				c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/db/query" {
						c.exec(pet)
					}
					return false
				})
			},
			"it holds or held pets or keys" + goOn,
		},
		"the data of another program": {
			func(c *fakeCluster, _ *store) { c.exec("PRAGMA application_id = 7") },
			"another program",
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			s, _ := openCluster(t, c, openOrMake)
			refused.prepare(c, s)
			file, _ := fileToCopy(t)
			_, _, err := petstore(t, nil, "restore", "-db", c.addresses(), file)
			c.when(nil)
			wantOneLine(t, err, false, "cannot restore "+c.addresses()+" from "+file, refused.want)
			if n := c.number("SELECT count(*) FROM pets WHERE name <> 'old'"); n != 0 {
				t.Errorf("%d pets are restored", n)
			}
			if kept, _ := filepath.Glob(filepath.Dir(file) + "/*"); len(kept) != 1 {
				t.Errorf("beside the copy there are %q", kept)
			}
		})
	}
}

// TestALoadThatFailsIsNoSuccess, however the node puts it, and can be run again.
func TestALoadThatFailsIsNoSuccess(t *testing.T) {
	for what, answer := range map[string]fakeAnswer{
		"an error":             respond(200, `{"error":"leadership lost while committing log"}`),
		"an error of SQL":      respond(200, `{"results":[{"error":"syntax error"}]}`),
		"success, and no data": respond(200, `{"results":[]}`),
		"no leader":            respond(503, "leader not found\n"),
		"a reset":              reset,
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			file, token := fileToCopy(t)
			c.always("/db/load", answer)
			_, log, err := petstore(t, nil, "restore", "-db", c.addresses(), file)
			wantOneLine(t, err, false, "cannot restore "+c.addresses()+" from "+file)
			if strings.Contains(log, "restored") {
				t.Errorf("the log says %s", log)
			}
			c.when(nil)
			mustRun(t, "restore", "-db", c.addresses(), "-skip-ids", "0", file)
			s, _ := openCluster(t, c, openToServe)
			wantCopied(t, s, token, 4)
		})
	}
}

// TestANodeMayTakeMinutesForACopy, in both directions. One that sends nothing of a backup for 15 s
// is given up.
func TestANodeMayTakeMinutesForACopy(t *testing.T) {
	for what, c := range map[string]struct {
		parts int // one every 14 seconds
		takes time.Duration
		says  string
	}{
		"one that sends slowly":         {20, (14 + 20*20) * time.Second, "<nil>"},
		"one that goes silent":          {3, (14 + 3*20 + 15) * time.Second, "nothing for 15s"},
		"one that is silent from start": {0, 15 * time.Second, "nothing for 15s"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := onPipe(t, func(w io.Writer) {
					for i := range c.parts {
						time.Sleep(14 * time.Second)
						if i == 0 {
							_, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
						}
						_, _ = io.WriteString(w, ".")
					}
				})
				slowDisk := writerFunc(func(p []byte) (int, error) {
					time.Sleep(20 * time.Second)
					return len(p), nil
				})
				start := time.Now()
				err := e.backup(t.Context(), slowDisk)
				if !strings.Contains(fmt.Sprint(err), c.says) {
					t.Errorf("it says %v", err)
				}
				if took := time.Since(start); took != c.takes {
					t.Errorf("it takes %v, want %v", took, c.takes)
				}
			})
		})
	}
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		const takes = 5 * time.Minute
		var copied bytes.Buffer
		e := clusterEngine(s)
		must(t, e.backup(t.Context(), &copied))
		c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/db/load" {
				time.Sleep(takes)
			}
			return false
		})
		wantTime(t, "the load", takes, takes, nil, func() error {
			return e.load(t.Context(), &copied, e.identity)
		})
	})
}

// onPipe is an engine whose one node responds as it likes to each request, and then goes silent.
// The two share no buffer.
func onPipe(t *testing.T, respond func(w io.Writer)) *rqlite {
	e := newRqlite(nodeURLs("http://node0:4001"), openToServe, testLog)
	t.Cleanup(func() { _ = e.Close() })
	e.inUse.Store(e.nodes[0])
	e.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (
		net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			_, _ = http.ReadRequest(bufio.NewReader(server))
			respond(server)
			_, _ = io.Copy(io.Discard, server) // until the client leaves
			_ = server.Close()
		}()
		return client, nil
	}
	return e
}

// TestAKilledRestoreLeavesNoCopy while a node loads it, which takes the most time.
func TestAKilledRestoreLeavesNoCopy(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	c := newCluster(t, 1)
	file, token := fileToCopy(t)
	c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
		left, _ := filepath.Glob(folder + "/petstore-*")
		if r.URL.Path == "/db/load" && len(left) > 0 && runtime.GOOS != "windows" {
			t.Errorf("%q are there while the copy is loaded", left)
		}
		return false
	})
	mustRun(t, "restore", "-db", c.addresses(), "-skip-ids", "0", file)
	s, _ := openCluster(t, c, openToServe)
	wantCopied(t, s, token, 4)
}

// TestRestoreToAClusterMayBeStoppedAtAnyTime: then nothing is loaded, or all of it.
func TestRestoreToAClusterMayBeStoppedAtAnyTime(t *testing.T) {
	for what, stop := range unknownOutcomes {
		t.Run(what, func(t *testing.T) {
			file, _ := fileToCopy(t)
			stopped := true
			for n := int64(1); stopped; n++ {
				c := newCluster(t, 1)
				args := []string{"restore", "-db", c.addresses(), file}
				ctx, cancel := context.WithCancel(t.Context())
				var asked atomic.Int64
				c.when(func(node *fakeNode, w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/status" || asked.Add(1) != n {
						return false
					}
					cancel()
					stop(node, w, r)
					return true
				})
				err := run(ctx, args, nil, nil, io.Discard, io.Discard)
				cancel()
				stopped = err != nil
				c.when(nil)
				// It is refused if the copy was loaded all the same.
				again := run(t.Context(), args, nil, nil, io.Discard, io.Discard)
				if c.number("SELECT count(*) FROM pets") != 3 {
					t.Errorf("stopped at request %d it says %v, and then %v", n, err, again)
				}
			}
		})
	}
}
