package e2e

// How tests run on a file and on a cluster.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// engine is what keeps the database.
type engine struct{ cluster *cluster } // nil: a file

// onBothEngines runs a test on a file, and beside that on a cluster.
func onBothEngines(t *testing.T, test func(t *testing.T, on engine)) {
	t.Helper()
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		test(t, engine{})
	})
	t.Run("a cluster", func(t *testing.T) {
		t.Parallel()
		test(t, engine{startCluster(t)})
	})
}

// start is start on the engine. The database is a new one on a cluster, too.
func (e engine) start(t *testing.T, flags ...string) *server {
	t.Helper()
	if e.cluster == nil {
		return start(t, flags...)
	}
	e.cluster.clear()
	s := &server{t: t, db: e.cluster.addresses()}
	s.key = s.newKey(unlimited...)
	s.run(flags...)
	return s
}

// clear takes everything out of a cluster.
func (c *cluster) clear() {
	c.t.Helper()
	nothing := filepath.Join(c.t.TempDir(), "nothing.db")
	database(c.t, nothing, "VACUUM").Close()
	c.load(nothing)
}

// load has a cluster take a file as it is, which petstore restore does not.
func (c *cluster) load(file string) {
	c.t.Helper()
	content, err := os.ReadFile(file)
	noError(c.t, err)
	status, answer, err := c.ask(c.leader(), "/db/load", string(content))
	if err != nil || status != 200 || answer != `{"results":[]}` {
		c.t.Fatalf("the file is not loaded: %d %s, %v", status, answer, err)
	}
}

// execute runs a statement on a cluster, as an operator may.
func (c *cluster) execute(statement string) {
	c.t.Helper()
	body, err := json.Marshal([]string{statement})
	noError(c.t, err)
	status, answer, err := c.ask(c.leader(), "/db/execute", string(body))
	if err != nil || status != 200 || strings.Contains(answer, `"error"`) {
		c.t.Fatalf("%s: %d %s, %v", statement, status, answer, err)
	}
}
