package e2e

// What is kept of a cluster whose tests find something wrong: which nodes have led when, what each
// holds itself, what was asked and answered, and all logs. Two leaders in one term are a fault of
// the Raft library that rqlite uses, of which docs/cluster.md tells, and a failure says so.

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// watch looks at the nodes of a cluster as long as a test runs.
type watch struct {
	cluster  *cluster
	services []*server
	keeping  sync.Once // the evidence of the first reading that is wrong

	mu      sync.Mutex             // guards what follows
	events  []string               // with their times
	leaders map[int]map[int]string // by term and node: when it has first said that it leads
}

// stampedLog is the log of a node, which tells only seconds, with the time before each line.
type stampedLog struct{ *logBuffer }

func (l stampedLog) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		fmt.Fprintf(l.logBuffer, "%s %s\n", stamp(), strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

func stamp() string { return time.Now().UTC().Format("15:04:05.000") }

// watch asks all nodes all the time how they are. If the test fails, it tells what was found.
func (c *cluster) watch(services []*server) *watch {
	w := &watch{cluster: c, services: services, leaders: map[int]map[int]string{}}
	c.watching = w
	ended := make(chan struct{})
	var asking sync.WaitGroup
	for i := range c.nodes {
		asking.Go(func() {
			var last raftStatus
			for {
				now, err := c.raft(i)
				now.Pending = 0
				if err == nil && now != last {
					w.noteStatus(i, now)
					last = now
				}
				select {
				case <-ended:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	c.t.Cleanup(func() {
		close(ended)
		asking.Wait()
		if c.t.Failed() {
			w.keep("the end of the test")
			c.t.Log(cmp.Or(w.lastingDifferences(), "all nodes hold the same rows"))
		}
		if fault := w.fault(); fault != "" {
			c.t.Log(fault)
		}
	})
	return w
}

func (w *watch) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, stamp()+" "+fmt.Sprintf(format, args...))
}

func (w *watch) noteStatus(i int, s raftStatus) {
	w.note("node %d is the %s of term %d", i, s.State, s.Term)
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.State != "Leader" {
		return
	}
	if w.leaders[s.Term] == nil {
		w.leaders[s.Term] = map[int]string{}
	}
	if w.leaders[s.Term][i] == "" {
		w.leaders[s.Term][i] = stamp()
	}
}

var electionWon = regexp.MustCompile(`(?m)^(\S+) .*election won: (term=\d+)`)

// fault is empty unless two nodes have led in one term. It tells which elections their logs have
// won: the one that counts a late vote has won that of a term before.
func (w *watch) fault() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, term := range slices.Sorted(maps.Keys(w.leaders)) {
		leaders := w.leaders[term]
		if len(leaders) < 2 {
			continue
		}
		text := fmt.Sprintf("TWO NODES HAVE LED IN TERM %d:\n", term)
		for _, i := range slices.Sorted(maps.Keys(leaders)) {
			text += fmt.Sprintf("node %d since %s; it has won the elections of", i, leaders[i])
			log := w.cluster.nodes[i].log.String()
			for _, won := range electionWon.FindAllStringSubmatch(log, -1) {
				text += " " + won[2] + " at " + won[1]
			}
			text += "\n"
		}
		return text + "That is the fault of the Raft library that docs/cluster.md tells of under " +
			"\"Two leaders\" (hashicorp/raft#695), and none of the service: what is wrong here " +
			"may come from it."
	}
	return ""
}

// reading is a response that is wrong.
type reading struct {
	url, token, target string
	got                *answer
	again              string // the target that asks for the same, and that nobody remembers
}

// keepReading keeps the evidence of the first reading that is wrong, at once.
func (w *watch) keepReading(r reading) {
	w.keeping.Do(func() {
		text := fmt.Sprintf("%s GET %s%s is %d\n%v\n%s\n", stamp(), r.url, r.target, r.got.status,
			r.got.header, r.got.body)
		service := r.url
		for i, s := range w.services {
			if r.got.header.Get(answeredBy) == fmt.Sprint("service", i) {
				service = s.url
			}
		}
		for _, target := range []string{r.target, r.again} {
			got, err := call(service, r.token, "GET", target, "", "")
			if err != nil {
				text += fmt.Sprintf("%s GET %s%s: %v\n", stamp(), service, target, err)
				continue
			}
			text += fmt.Sprintf("%s GET %s%s is %d %s\n", stamp(), service, target, got.status,
				got.body)
			if target == r.again {
				text += "the first response came from memory, if this last one, for which the " +
					"service has asked a node, shows other pets\n"
			}
		}
		w.write(text)
	})
}

// keep keeps the evidence of something else, unless that of a reading was kept.
func (w *watch) keep(what string) { w.keeping.Do(func() { w.write(what) }) }

// write writes all that is known to a new folder, and tells its name.
func (w *watch) write(what string) {
	folder, err := os.MkdirTemp("", "cluster-evidence-")
	noError(w.cluster.t, err)
	files := map[string]string{"reading.txt": what}
	for i := range w.cluster.nodes {
		rows, err := w.cluster.copyOf(i)
		files[fmt.Sprintf("node-%d-rows.json", i)] = fmt.Sprint(rows, err)
		files[fmt.Sprintf("node-%d.log", i)] = w.cluster.nodes[i].log.String()
	}
	for i, s := range w.services {
		files[fmt.Sprintf("service-%d.log", i)] = s.log.String()
		if s.debug == "" {
			continue
		}
		got, err := callers.Get(s.debug + "/metrics") // has the node in use
		if err == nil {
			a, _ := readAnswer(got)
			files[fmt.Sprintf("service-%d-metrics.txt", i)] = a.body
		}
	}
	w.mu.Lock()
	files["events.txt"] = strings.Join(w.events, "\n") + "\n"
	w.mu.Unlock()
	for name, text := range files {
		noError(w.cluster.t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	w.cluster.t.Logf("%s has what was asked and answered, which node led when, what each holds, "+
		"and all logs", folder)
}

// copyOf is what a node holds itself, by the statements that operators are told to use.
func (c *cluster) copyOf(i int) (rows string, err error) {
	statements, err := os.ReadFile("../docs/deploy/compare.json")
	if err != nil {
		return "", err
	}
	_, rows, err = c.ask(i, "/db/query?level=none", string(statements))
	if err == nil && strings.Contains(rows, `"error":`) {
		err = errors.New(rows)
	}
	return rows, err
}

// lastingDifferences are those that are left when the nodes have had time to agree. Meanwhile the
// services are frozen, which would flush usage twice a second.
func (w *watch) lastingDifferences() (text string) {
	for _, s := range w.services {
		_ = s.cmd.Process.Signal(syscall.SIGSTOP)   // it may be dead
		defer s.cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // likewise
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		text = w.differences()
		if text == "" || time.Now().After(deadline) {
			return text
		}
	}
}

// differences tells which rows of which tables not all nodes hold, and is empty if there are none.
func (w *watch) differences() string {
	type table struct{ Values []json.RawMessage }
	holders := map[string][]int{} // by table and row: the nodes that hold it
	for i := range w.cluster.nodes {
		text, err := w.cluster.copyOf(i)
		if err != nil {
			return fmt.Sprintf("node %d does not tell what it holds: %v", i, err)
		}
		var held struct{ Results []table }
		if err := json.Unmarshal([]byte(text), &held); err != nil {
			return fmt.Sprintf("node %d holds %.200s: %v", i, text, err)
		}
		for number, t := range held.Results {
			for _, row := range t.Values {
				name := fmt.Sprintf("row %s of table %d of docs/deploy/compare.json", row, number)
				holders[name] = append(holders[name], i)
			}
		}
	}
	var told []string
	for row, nodes := range holders {
		if len(nodes) < len(w.cluster.nodes) {
			told = append(told, fmt.Sprintf("only the nodes %v hold %s", nodes, row))
		}
	}
	slices.Sort(told)
	if len(told) > 10 {
		told = append(told[:10], fmt.Sprintf("and so on, %d rows in all", len(told)))
	}
	return strings.Join(told, "\n")
}

// liar stands for a node that says that it leads, whoever else does, and holds what it likes.
func (c *cluster) liar(i int, status, rows string) {
	c.t.Helper()
	n := c.nodes[i]
	listener, err := net.Listen("tcp", n.address+":"+rqlitePort)
	noError(c.t, err)
	answers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := rows
		if r.URL.Path == "/status" {
			text = status
		}
		_, _ = io.WriteString(w, text)
	})
	server := &http.Server{Handler: answers, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	c.t.Cleanup(func() { server.Close() })
}

// TestTwoLeadersAreTold, by a storm whose nodes say that two of them lead in one term, together
// with what the nodes hold, and what was asked. Leaders of different terms are none.
func TestTwoLeadersAreTold(t *testing.T) {
	const (
		leads  = `{"store":{"raft":{"state":"Leader","term":4}}}`
		led    = `{"store":{"raft":{"state":"Leader","term":3}}}`
		follow = `{"store":{"raft":{"state":"Follower","term":4}}}`
		rex    = `{"results":[{"values":[[17,1,2,"Rex"]]}]}`
		ada    = `{"results":[{"values":[[17,1,2,"Ada"]]}]}`
		won    = "[raft] 2026/11/28 07:30:57 [INFO]  election won: term=%d tally=2\n"
	)
	for what, plant := range map[string]struct {
		statuses [clusterSize]string
		told     bool
	}{
		"two lead in one term": {[...]string{leads, follow, leads}, true},
		"one does not know":    {[...]string{leads, follow, led}, false},
	} {
		t.Run(what, func(t *testing.T) {
			c := &cluster{t: t, client: &http.Client{Timeout: 2 * time.Second}}
			address, _, _ := net.SplitHostPort(ownAddress(t))
			network := address[:strings.LastIndex(address, ".")+1]
			for i, status := range plant.statuses {
				n := &rqliteNode{address: fmt.Sprint(network, i+1), log: &logBuffer{}}
				c.nodes = append(c.nodes, n)
				c.liar(i, status, []string{rex, rex, ada}[i])
				fmt.Fprintf(stampedLog{n.log}, won, []int{4, 2, 3}[i])
			}
			folder := t.TempDir()
			t.Setenv("TMPDIR", folder)
			w := c.watch(nil)
			eventually(t, longEnough, func() error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.events) < clusterSize {
					return fmt.Errorf("of %d nodes there are only %s", clusterSize, w.events)
				}
				return nil
			})
			fault := w.fault()
			want := regexp.MustCompile(`(?s)^TWO NODES HAVE LED IN TERM 4:
node 0 since \S+; it has won the elections of term=4 at \S+
node 2 since \S+; it has won the elections of term=3 at \S+
That is the fault .* \(hashicorp/raft#695\)`)
			if want.MatchString(fault) != plant.told {
				t.Errorf("the storm says %q, and should tell of two leaders: %v", fault, plant.told)
			}
			if told := w.differences(); !strings.Contains(told, `only the nodes [2] hold row `+
				`[17,1,2,"Ada"]`) {
				t.Errorf("the nodes are said to differ in %q", told)
			}
			tom := &answer{body: "Tom"}
			w.keepReading(reading{c.url(0), "key", "/pets/17", tom, "/pets?limit=1"})
			for file, want := range map[string]string{
				"reading.txt":      "(?s)Tom.*GET .*/pets/17 is 200.*GET .*/pets.limit=1 is 200",
				"node-2-rows.json": "Ada",
				"events.txt":       "node 1 is the (Leader|Follower) of term 4",
			} {
				kept, _ := filepath.Glob(filepath.Join(folder, "cluster-evidence-*", file))
				if len(kept) != 1 || !regexp.MustCompile(want).MatchString(readFile(t, kept[0])) {
					t.Errorf("%s is kept as %s, and lacks %s", file, kept, want)
				}
			}
		})
	}
}
