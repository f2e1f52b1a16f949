package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
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
			func(c *fakeCluster) { c.exec(applicationMark, "PRAGMA user_version = 99") },
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
	metrics := service.currentMetrics().String()
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
	c := newCluster(t, 1)
	s, _ := openCluster(t, c, openToServe)
	var sent atomic.Int64
	answerOnce(c, func(_ *fakeNode, w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"results":[{"error":"`)
		megabyte := bytes.Repeat([]byte("x"), 1<<20)
		for n := 0; err == nil && sent.Load() < 300<<20; sent.Add(int64(n)) {
			n, err = w.Write(megabyte)
		}
	})
	_, err := s.createPet(rex)
	if !errors.Is(err, errOutcome) || len(err.Error()) > 2000 {
		t.Errorf("a write with an endless response says %.200v", err)
	}
	if n := sent.Load(); n > maxAnswer+64<<20 { // and what the buffers of the system hold
		t.Errorf("%d bytes were read", n)
	}
}
