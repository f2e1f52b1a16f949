package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// marks are what a refusal must not change.
func (c *fakeCluster) marks() [3]int64 {
	return [3]int64{
		c.number("PRAGMA application_id"),
		c.number("PRAGMA user_version"),
		c.number("SELECT count(*) FROM sqlite_schema"),
	}
}

// wantRefused checks that a store on the cluster is refused in one line that says why, and that the
// cluster is left as it was.
func (c *fakeCluster) wantRefused(want string) {
	c.t.Helper()
	before := c.marks()
	for _, mode := range []openMode{openToServe, openExisting} {
		_, err := openStore(c.t.Context(), c.securedAddresses(), mode, testLog)
		if err == nil {
			c.t.Fatal("it is opened")
		}
		wantOneLine(c.t, err, false, "cannot open the database "+c.addresses()+": ", want)
		if strings.Contains(err.Error(), "s3cret") {
			c.t.Errorf("the error says the password: %v", err)
		}
	}
	isNoQuery := func(r string) bool { return !strings.HasSuffix(r, "level=linearizable") }
	if sent := c.arrived(); slices.ContainsFunc(sent, isNoQuery) {
		c.t.Errorf("more than queries was sent: %q", sent)
	}
	if after := c.marks(); after != before {
		c.t.Errorf("the marks were %v and are %v", before, after)
	}
}

func TestAClusterThatCannotBeUsedIsRefused(t *testing.T) {
	status := func(answer fakeAnswer) func(c *fakeCluster) {
		return func(c *fakeCluster) { c.always("/status", answer) }
	}
	for what, refused := range map[string]struct {
		prepare func(c *fakeCluster)
		want    string
	}{
		"another program, which knows no /status": {status(respond(404, "not found")), "404"},
		"another program, which shows a page":     {status(respond(200, "<html>")), `rqlite ""`},
		"another program, which speaks JSON":      {status(respond(200, `{"a":"b"}`)), `rqlite ""`},
		"another program, which sends elsewhere":  {status(redirect), "307"},
		"another password": {
			func(c *fakeCluster) { c.password = "other" },
			"responds 401 Unauthorized",
		},
		"tables of another program": {
			func(c *fakeCluster) { c.exec("CREATE TABLE pets (name)") },
			"it belongs to another program",
		},
		"the mark of another program": {
			func(c *fakeCluster) { c.exec("PRAGMA application_id = 7") },
			"it belongs to another program",
		},
		"the schema of a newer petstore": {
			func(c *fakeCluster) {
				for _, st := range upgrade(0, 7) {
					c.mustExec(st.query, st.args...)
				}
				c.exec("PRAGMA user_version = 99")
			},
			"its schema is version 99",
		},
		"a database that cannot be read": {
			func(c *fakeCluster) {
				c.always("/db/query", respond(200, `{"results":[{"error":"disk I/O error"}]}`))
			},
			"disk I/O error",
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := newSecuredCluster(t)
			refused.prepare(c)
			c.wantRefused(refused.want)
		})
	}
}

var applicationMark = fmt.Sprint("PRAGMA application_id = ", applicationID)

func TestANodeThatIsTooOldIsRefused(t *testing.T) {
	for _, version := range []string{
		"v8.26.8", "v8.32.3", "v7.99.99", "8.43.4", "v8.43", "unknown", "",
	} {
		t.Run(version, func(t *testing.T) {
			c := newSecuredCluster(t)
			c.nodes[2].version = version
			c.wantRefused(fmt.Sprintf("is rqlite %q, and v8.32.4 or newer is needed", version))
		})
	}
	c := newCluster(t, 2)
	c.nodes[0].version, c.nodes[1].version = "v8.32.4", "v9.0.0"
	openCluster(t, c, openToServe)
}

// newSecuredCluster makes a cluster with a password.
func newSecuredCluster(t testing.TB) *fakeCluster {
	c := newCluster(t, 3)
	c.user, c.password = "anna", "s3cret"
	return c
}

// securedAddresses are what -db says to use a newSecuredCluster.
func (c *fakeCluster) securedAddresses() string {
	return strings.ReplaceAll(c.addresses(), "//", "//anna:s3cret@")
}

// TestACommandMakesNoDatabaseOnACluster that has none: the first service or the first key does.
func TestACommandMakesNoDatabaseOnACluster(t *testing.T) {
	c := newCluster(t, 1)
	_, _, err := petstore(t, nil, "key", "list", "-db", c.addresses())
	wantOneLine(t, err, false, "petstore makes it at its first start")
	if marks := c.marks(); marks != [3]int64{} {
		t.Errorf("the marks are %v", marks)
	}
	_, _, err = petstore(t, nil, "key", "create", "-db", c.addresses())
	must(t, err)
	if marks := c.marks(); marks[1] != int64(len(migrations)) {
		t.Errorf("a first key makes the schema %d", marks[1])
	}
}

// TestASecretIsShownNowhere: not in errors as main shows them, logs, /metrics or the name of the
// engine.
func TestASecretIsShownNowhere(t *testing.T) {
	c := newSecuredCluster(t)
	addresses := c.securedAddresses()
	s, log := openClusterAt(t, addresses, openToServe)
	var shown strings.Builder
	show := func(err error) { shown.WriteString(redact(fmt.Sprintln(err))) }
	for _, trouble := range []func(){
		func() { c.lead(1) },
		func() { answerOnce(c, redirect) },
		func() { answerOnce(c, reset) },
		func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.password = "changed"
		},
		func() { c.nodes[1].stop() },
	} {
		trouble()
		show(errorOf(s.write(t.Context(), sqlOf("DELETE FROM usage"))))
	}
	_, _, err := petstore(t, nil, "key", "list", "-db", addresses+"/path")
	show(err)
	engine, node := s.engine.describe()
	service := newService(s, settings{}, newLogger(log, "json", slog.LevelDebug))
	metrics := newOperator(service).currentMetrics().String()
	shown.WriteString(engine + node + databaseName(addresses) + metrics + log.String())
	for _, secret := range []string{"anna", "s3cret"} {
		if strings.Contains(shown.String(), secret) {
			t.Errorf("%q is shown: %s", secret, shown.String())
		}
	}
	want := fmt.Sprintf(`petstore_engine_info{engine="rqlite",node=%q} 1`, node)
	if !strings.Contains(metrics, want) {
		t.Errorf("/metrics has no %s", want)
	}
}

// redirect sends a client to another host, which must not be asked.
func redirect(_ *fakeNode, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "http://elsewhere:1/", http.StatusTemporaryRedirect)
}

// TestNoProxyOfTheEnvironmentIsUsed: nothing goes to another host.
func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	e := newRqlite(nil, openToServe, testLog)
	if e.client.Transport.(*http.Transport).Proxy != nil {
		t.Error("there may be a proxy")
	}
}

// TestWhatIsReadIsBounded: a node that sends without an end fills no memory.
func TestWhatIsReadIsBounded(t *testing.T) {
	for what, c := range map[string]struct {
		begins string
		most   int64
	}{
		"a head": {"HTTP/1.1 200 OK\r\nX: ", 64 << 10},
		"a body": {"HTTP/1.1 200 OK\r\n\r\n" + `{"results":[{"error":"`, 4 << 20},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent int64
				e := onPipe(t, func(w io.Writer) {
					_, err := io.WriteString(w, c.begins)
					for sent = 0; err == nil && sent < 100<<20; sent += 1024 {
						_, err = io.WriteString(w, strings.Repeat("x", 1024))
					}
				})
				e.locating <- struct{}{} // nobody asks for a status
				_, err := e.write(t.Context(), []statement{sqlOf("DELETE FROM usage")})
				if !errors.Is(err, errOutcome) || len(err.Error()) > 2000 {
					t.Errorf("a write with an endless response says %.200v", err)
				}
				synctest.Wait()                                // the node notices that the client has left
				if sent < c.most-4096 || sent > c.most+16384 { // what net/http reads ahead
					t.Errorf("%d bytes were read", sent)
				}
			})
		})
	}
}

// TestWhatIsLongIsReadInParts: reports, exports and flushes work with 12,000 keys that are used
// today, and 40,000 that are banned, whatever their names.
func TestWhatIsLongIsReadInParts(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		const keys, bans = 12_000, 40_000
		now := instantOf(time.Now())
		c.exec(fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
				WHERE i < %d)
			INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
				created_at, lifetime, expires_at, unbanned_at)
			SELECT unhex(format('%%064d', i)), 'abcd', 0, '%s', 'free', 0, 0, 1, 0, 0, 0
			FROM n`, keys, strings.Repeat("😀", 200)),
			"INSERT INTO pets (category_id, status, name) SELECT 1, 2, name FROM api_keys",
			fmt.Sprintf("INSERT INTO usage_days SELECT id, %d, 60, 1, 1 FROM api_keys",
				now/dayMillis),
			fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
				WHERE i < %d)
				INSERT INTO usage SELECT i, 60, %d, 60, %d, %d, %d + i FROM n`,
				bans, now+minuteMillis, now+dayMillis, now, now+minuteMillis))
		report, err := readReport(t.Context(), s, now)
		must(t, err)
		if len(report.NearLimits) != 20 || len(report.Usage) != 15 {
			t.Errorf("the report has %d and %d keys", len(report.NearLimits), len(report.Usage))
		}
		for what, do := range map[string]func(context.Context, *invocation) error{
			"key list": keyList, "key usage": keyUsage, "pet export": petExport,
		} {
			var out bytes.Buffer
			process := &process{stdout: &out, stderr: io.Discard}
			cmd := &invocation{process: process, log: testLog, store: s, now: now}
			cmd.FlagSet = flag.NewFlagSet("", 0)
			cmd.days = 1
			must(t, do(t.Context(), cmd))
			if n := bytes.Count(out.Bytes(), []byte("\U0001F600")); n != 200*keys {
				t.Errorf("the names that %s prints have %d characters", what, n)
			}
		}
		l := newLedger(s, time.Minute)
		for id := range int64(2 * maxBatch) {
			_, err := l.admit(&account{usageID: id + 1, quota: planQuota(freePlan)}, time.Now())
			must(t, err)
		}
		must(t, l.flush(t.Context(), time.Now))
	})
}
