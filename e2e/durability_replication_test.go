package e2e

// Proven here alone: what Litestream, as documented, brings to another machine, through restarts,
// kills and a lost mount, and what the loss of a machine costs.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Litestream copies the database to another machine, for which a folder stands
// here. Its version, its configuration and the commands of a restore are those of
// the documents, so that what is tried is what operators are told. Only .ci/run builds
// it otherwise: without its client of Google's storage.

// mostLost is how far back the loss of a machine may reach. The configuration
// makes it 0.6 seconds; the rest is for a machine that is busy with other tests.
const mostLost = 5 * time.Second

// TestALostMachineCostsItsLastMoments kills the service and Litestream among
// clients that create animals, removes the disk, and restores from the other
// machine: all that was answered is there up to some moment, shortly before.
func TestALostMachineCostsItsLastMoments(t *testing.T) {
	t.Parallel()
	guide := readGuide(t)
	for round := range soak(1) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			s, standby := start(t), t.TempDir()
			copier := guide.replicate(t, s.db, standby)

			load := startLoad(s, 8)
			// a copy that stands still is then found too old
			<-time.After(mostLost + time.Second + rand.N(time.Second))
			kill(t, copier.cmd)
			s.kill()
			died := time.Now()
			load.end()
			// Litestream's lock may outlast the service's patience when the disk stalls, but not
			// each time
			if load.refused > 16 {
				t.Errorf("%d creates were refused while Litestream was copying, the last with %v",
					load.refused, load.reason)
			}
			noError(t, os.RemoveAll(filepath.Dir(s.db)))
			copier.checkLog(t)

			guide.putInPlace(t, s, guide.copyOut(t, standby))
			s.run()
			last := checkAnswered(t, s, load.answered, died)
			checkIDsAfterRestore(t, s, last, load.answered)
		})
	}
}

// TestReplicationOutlivesRestarts stops and kills the service and Litestream in
// turn, and finds on the other machine, each time, all that was answered since.
func TestReplicationOutlivesRestarts(t *testing.T) {
	t.Parallel()
	guide := readGuide(t)
	s, folder := start(t), t.TempDir()
	mounted := filepath.Join(t.TempDir(), "standby")
	standby := filepath.Join(mounted, "petstore")
	mount := func(folder string) { // a link stands for it, so that it changes in one step
		t.Helper()
		noError(t, errors.Join(os.Symlink(folder, mounted+".new"), os.Rename(mounted+".new",
			mounted)))
	}
	mount(folder)
	copier := guide.replicate(t, s.db, standby)
	client := newHTTPClient(1)
	animals := 0
	createSome := func(number int) {
		t.Helper()
		for range number {
			if _, err := createNamed(client, s, fmt.Sprint("animal ", animals,
				strings.Repeat(" and on", 25))); err != nil {
				t.Fatal(err)
			}
			animals++
		}
	}
	const many = 400 // enough pages for SQLite to checkpoint, and to start its log anew
	for _, interruption := range []struct {
		what string
		do   func()
	}{
		{"nothing happened", func() {}},
		{"a restart of the service", func() { s.stop(); s.run() }},
		{"a kill of the service", func() { s.kill(); s.run() }},
		{"a while without Litestream", func() {
			kill(t, copier.cmd)
			createSome(many)
			copier = guide.replicate(t, s.db, standby)
		}},
		{"a log that began anew without Litestream", func() {
			kill(t, copier.cmd)
			createSome(60) // some pages, which the next creates leave alone
			noError(t, database(t, s.db, "PRAGMA wal_checkpoint(RESTART)").Close())
			createSome(1)
			copier = guide.replicate(t, s.db, standby)
			awaitEverything(t, guide, copier, s.db, standby, "a new log")
		}},
		{"a life of the service alone", func() {
			kill(t, copier.cmd)
			s.stop() // as the last one it removes its write-ahead log
			s.run()
			createSome(many)
			s.stop()
			copier = guide.replicate(t, s.db, standby)
			s.run()
		}},
		{"a kill of both", func() {
			kill(t, copier.cmd)
			s.kill()
			s.run()
			copier = guide.replicate(t, s.db, standby)
		}},
		{"a while without the other machine", func() {
			mount(filepath.Join(folder, "gone"))
			createSome(many)
			copier.await(t, "has not noticed",
				func() bool { return strings.Contains(copier.log.String(), "level=ERROR") })
			mount(folder)
		}},
	} {
		interruption.do()
		createSome(many)
		awaitEverything(t, guide, copier, s.db, standby, interruption.what)
	}
}

// guide is what the documents say about Litestream.
type guide struct {
	program string   // of the version that they name
	config  string   // the file, for the paths in it
	prepare []string // the commands that the unit runs before each start
	umask   string   // of the restore
	// the commands: Litestream's makes a copy of the database, and petstore's puts it in place
	restore [2]string
}

// The paths in the guide, which tests replace by folders of their own.
const (
	guideFolder = "/var/lib/petstore"     // of the database, on both machines
	guideMount  = "/srv/standby/petstore" // of the copy, seen from the first machine
	guideCopy   = "/srv/petstore"         // the same, seen from the other
)

func readGuide(t *testing.T) guide {
	t.Helper()
	// find is the one command of the section that begins so, without that beginning.
	find := func(beginning string) (rest string) {
		t.Helper()
		for _, d := range readDocuments(t) {
			for _, b := range d.blocks {
				for _, c := range b.commands() {
					if after, ok := strings.CutPrefix(c.line, beginning); ok &&
						b.section == replication {
						rest = after
					}
				}
			}
		}
		if rest == "" {
			t.Fatalf("no command under %q begins with %s", replication, beginning)
		}
		return rest
	}
	program, err := installLitestream(find("GOBIN=/usr/local/bin go install "))
	noError(t, err)
	config, err := os.ReadFile("../docs/deploy/litestream.yml")
	noError(t, err)
	unit, err := os.ReadFile("../docs/deploy/litestream.service")
	noError(t, err)
	var prepare []string
	for line := range strings.Lines(string(unit)) {
		if command, ok := strings.CutPrefix(line, "ExecStartPre=/"); ok {
			prepare = append(prepare, "/"+command)
		}
	}
	return guide{program, string(config), prepare, find("umask "),
		[2]string{find("litestream restore "), find("petstore restore ")}}
}

// installing is held while Litestream is built, so that tests that begin together build it once.
var installing sync.Mutex

// installLitestream builds the module's command, once for all tests.
func installLitestream(module string) (program string, err error) {
	installing.Lock()
	defer installing.Unlock()
	program = filepath.Join(filepath.Dir(binary), "litestream")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	install := exec.Command("go", "install", module)
	install.Env = append(os.Environ(), "GOBIN="+filepath.Dir(program))
	if built := os.Getenv("LITESTREAM"); built != "" { // by .ci/run
		install = exec.Command("cp", built, program)
	}
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", install, err, out)
	}
	return program, nil
}

// copier is a running Litestream.
type copier struct {
	cmd *exec.Cmd
	log *logBuffer
}

// replicate starts Litestream as the guide's unit and configuration do, and waits until
// there is something to restore from. It is killed when the test ends.
func (g guide) replicate(t *testing.T, db, standby string) *copier {
	t.Helper()
	config := filepath.Join(t.TempDir(), "litestream.yml")
	paths := strings.NewReplacer(guideFolder+"/petstore.db", db, guideMount, standby)
	noError(t, os.WriteFile(config, []byte(paths.Replace(g.config)), 0o600))
	for _, command := range g.prepare {
		command = strings.NewReplacer(guideFolder, filepath.Dir(db), guideMount,
			standby).Replace(command)
		runs(t, exec.Command("sh", "-c", command))
	}
	c := &copier{exec.Command(g.program, "replicate", "-config", config), &logBuffer{}}
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	noError(t, c.cmd.Start())
	t.Cleanup(func() {
		if c.cmd.ProcessState == nil {
			kill(t, c.cmd)
		}
	})
	c.await(t, "has copied nothing yet", func() bool {
		files, err := filepath.Glob(filepath.Join(standby, "ltx", "*", "*.ltx"))
		return err == nil && len(files) > 0
	})
	return c
}

// await waits for what Litestream is to do.
func (c *copier) await(t *testing.T, otherwise string, done func() bool) {
	t.Helper()
	eventually(t, 20*time.Second, func() error {
		if !done() {
			return fmt.Errorf("Litestream %s:\n%s", otherwise, c.log)
		}
		return nil
	})
}

// checkLog expects no error that Litestream has met.
func (c *copier) checkLog(t *testing.T) {
	t.Helper()
	if log := c.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("Litestream met errors:\n%s", log)
	}
}

// copyOut has Litestream make a database out of the copy, in a new folder, and
// read it through for damage. It returns the file.
func (g guide) copyOut(t *testing.T, standby string) (file string) {
	t.Helper()
	folder := t.TempDir()
	args := strings.Fields(strings.NewReplacer(guideFolder, folder, guideCopy,
		standby).Replace(g.restore[0]))
	restore := append([]string{"-c", "umask " + g.umask + ` && exec "$0" restore "$@"`, g.program},
		args...)
	runs(t, exec.Command("sh", restore...))
	file = filepath.Join(folder, "copy.db")
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the copy, with the keys' digests, is %v, %v", info, err)
	}
	checkIntegrity(t, file)
	return file
}

// putInPlace makes the database of a service out of the file that Litestream made.
func (g guide) putInPlace(t *testing.T, s *server, file string) {
	t.Helper()
	s.db = filepath.Join(filepath.Dir(file), "petstore.db")
	args := strings.Fields(strings.ReplaceAll(g.restore[1], guideFolder, filepath.Dir(file)))
	s.command(append([]string{"restore"}, args...)...)
}

// acknowledged is an animal whose 201 a client has received.
type acknowledged struct {
	name string
	id   int64
	at   time.Time
}

// load is a number of clients that create animals without a pause, each until it gets no response.
type load struct {
	server  *server
	client  *http.Client
	clients sync.WaitGroup
	stopped atomic.Bool

	pause        time.Duration // of a client before each create
	suffix       string        // of the names
	firstRefusal func()        // or nil

	// What the clients have seen, complete at the end.
	mu       sync.Mutex
	answered []acknowledged
	refused  int
	lost     int   // requests without a response
	reason   error // of the last one that was refused or lost
}

func startLoad(s *server, clients int) *load {
	l := &load{server: s, client: newHTTPClient(8)}
	l.begin(clients)
	return l
}

func (l *load) begin(clients int) {
	for c := range clients {
		l.clients.Go(func() {
			for i := 0; !l.stopped.Load(); i++ {
				time.Sleep(l.pause)
				if !l.create(fmt.Sprintf("client %d, animal %d%s", c, i, l.suffix)) {
					return
				}
			}
		})
	}
}

// create creates one animal, and reports whether there was a response.
func (l *load) create(name string) (responded bool) {
	id, err := createNamed(l.client, l.server, name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.answered = append(l.answered, acknowledged{name, id, time.Now()})
		return true
	}
	l.reason = err
	if _, isLost := errors.AsType[*url.Error](err); isLost {
		l.lost++
		return false
	}
	l.refused++
	if l.refused == 1 && l.firstRefusal != nil {
		l.firstRefusal()
	}
	return true
}

// end ends the clients, or waits until those of a service that has ended have noticed it.
func (l *load) end() {
	l.stopped.Store(true)
	l.clients.Wait()
}

// createNamed adds an animal and returns its id, or the error of having no 201.
func createNamed(client *http.Client, s *server, name string) (id int64, err error) {
	got, err := s.send(context.Background(), client, "POST", "/pets", animalJSON(name))
	if err != nil {
		return 0, err
	}
	if got.status != http.StatusCreated {
		return 0, fmt.Errorf("status %d: %s", got.status, got.body)
	}
	var made pet
	err = json.Unmarshal([]byte(got.body), &made)
	return made.ID, err
}

// checkAnswered compares what a restored service has with what was answered
// before its machine died, and returns the last id that it has.
func checkAnswered(t *testing.T, s *server, answered []acknowledged, died time.Time) (last int64) {
	t.Helper()
	var animals []pet
	noError(t, json.Unmarshal([]byte(query[string](t, s.db,
		"SELECT json_group_array(json_object('id', id, 'name', name)) FROM pets")),
		&animals))
	stored := map[string][]int64{}
	for _, a := range animals {
		stored[a.Name] = append(stored[a.Name], a.ID)
		last = max(last, a.ID)
	}
	lost, since := 0, died
	for _, a := range answered {
		ids := stored[a.name]
		switch {
		case a.id > last && len(ids) == 0:
			lost++
			if a.at.Before(since) {
				since = a.at
			}
		case len(ids) != 1 || ids[0] != a.id:
			t.Errorf("%s was answered with id %d and is restored as %v, beside ids up to %d",
				a.name, a.id, ids, last)
		}
	}
	t.Logf("%d of %d animals lost, answered in the last %v", lost, len(answered),
		died.Sub(since).Round(time.Millisecond))
	if died.Sub(since) > mostLost {
		t.Errorf("animals are lost that were answered %v before the machine died; at most %v are "+
			"accepted", died.Sub(since), mostLost)
	}
	return last
}

// checkIDsAfterRestore wants the ids of lost pets left out, and many more.
func checkIDsAfterRestore(t *testing.T, s *server, last int64, answered []acknowledged) {
	t.Helper()
	id, err := createNamed(http.DefaultClient, s, "first")
	if err != nil || id != last+1_000_001 {
		t.Errorf("the first pet after a restore has the id %d (%v), and the last one before it %d",
			id, err, last)
	}
	for _, a := range answered {
		if a.id >= id {
			t.Fatalf("the id %d is assigned although %d had been", id, a.id)
		}
	}
}

// awaitEverything waits until the copy has all animals of the database.
func awaitEverything(t *testing.T, g guide, c *copier, db, standby, after string) {
	t.Helper()
	const animals = "SELECT json_group_array(json_array(id, name, category_id, status)) FROM pets"
	want := query[string](t, db, animals)
	c.await(t, "lacks animals after "+after,
		func() bool { return query[string](t, g.copyOut(t, standby), animals) == want })
}

// TestLitestreamWaitsForTheOtherMachine boots a machine whose other one is away at first, and again
// while Litestream runs: nothing is written in its place, and what the node exporter tells of it
// fires an alert.
func TestLitestreamWaitsForTheOtherMachine(t *testing.T) {
	t.Parallel()
	needs(t, "prometheus-node-exporter", "promtool", "dbus-daemon")
	readGuide(t) // builds Litestream
	programs, err := filepath.Abs(filepath.Dir(binary))
	noError(t, err)
	deploy, err := filepath.Abs("../docs/deploy")
	noError(t, err)
	m := bootMachine(t, programs, deploy)
	m.run("cd " + deploy +
		" && cp litestream.service petstore.service /etc/systemd/system && cp litestream.yml " +
		"petstore.env /etc")
	m.run("cp " + programs +
		"/{petstore,litestream} /usr/local/bin && mkdir -p /srv/standby /srv/other " +
		"/etc/systemd/system/litestream.service.d")
	m.run("printf '[Service]\nRestartSec=100ms\n' " +
		">/etc/systemd/system/litestream.service.d/e2e.conf; systemctl daemon-reload")
	m.run("systemctl start dbus && (setsid prometheus-node-exporter " +
		"--web.listen-address=127.0.0.1:9100 >/dev/null 2>&1 &)")
	m.run("export PETSTORE_DB=/var/lib/petstore/petstore.db && install -d -m 700 " +
		"/var/lib/petstore && petstore key create && systemctl start petstore")
	m.run("mount -t tmpfs none /srv/other")

	m.run("systemctl enable --now litestream; until [ $(systemctl show --value -p NRestarts " +
		"litestream) -gt 6 ]; do sleep 0.1; done")
	m.wantCopying(false)
	m.run("mount --bind /srv/other /srv/standby")
	m.wantCopied()
	m.wantCopying(true)

	m.run("umount /srv/standby && petstore key create")
	m.run("for i in $(seq 200); do journalctl -u litestream | " +
		"grep -q 'level=ERROR.*read-only file system' && break; sleep 0.1; done")
	m.wantCopying(false)
	m.run("[ -z \"$(ls -A /srv/standby)\" ]")
	m.run("mount --bind /srv/other /srv/standby")
	m.wantCopied()

	// A damaged database is moved away, and another one takes its place.
	m.run("systemctl stop petstore && mv /var/lib/petstore/petstore.db* /root && petstore key " +
		"create && systemctl restart litestream")
	m.wantCopied()
}

// wantCopied waits until the other machine has all keys of this one.
func (m *machine) wantCopied() {
	m.t.Helper()
	m.run(`until rm -f /tmp/copy.db* &&
			litestream restore -o /tmp/copy.db file:///srv/other/petstore >/dev/null 2>&1 &&
			diff <(petstore key list) <(petstore key list -db /tmp/copy.db) >/dev/null; do
		sleep 0.1
	done`)
}

// wantCopying gives what the node exporter tells now to the alert, for half an hour.
func (m *machine) wantCopying(copying bool) {
	m.t.Helper()
	metrics := m.run(
		`curl -fsS --retry 30 --retry-delay 1 --retry-connrefused 127.0.0.1:9100/metrics |
		grep -E '^node_(systemd_unit_state[{]name="litestream|filesystem_size_bytes)'`)
	var rules strings.Builder
	rules.WriteString("rule_files: [alerts.yml]\ntests:\n- interval: 15s\n  input_series:\n")
	for line := range strings.Lines(metrics) {
		end := strings.LastIndex(line, "} ")
		fmt.Fprintf(&rules, "  - {series: '%s', values: '%sx120'}\n", line[:end+1],
			strings.TrimSpace(line[end+2:]))
	}
	fired := "[]"
	if !copying {
		fired = `[{exp_labels: {name: litestream.service, state: active, type: simple},
			exp_annotations: {summary: " copies nothing to the other machine"}}]`
	}
	fmt.Fprintf(&rules,
		"  alert_rule_test:\n  - {eval_time: 28m, alertname: PetstoreNotCopied, exp_alerts: %s}\n",
		fired)
	dir := m.t.TempDir()
	noError(m.t, os.WriteFile(filepath.Join(dir, "alerts.yml"),
		[]byte(readFile(m.t, "../docs/deploy/alerts.yml")), 0o600))
	noError(m.t, os.WriteFile(filepath.Join(dir, "test.yml"), []byte(rules.String()), 0o600))
	if out, err := exec.Command("promtool", "test", "rules",
		filepath.Join(dir, "test.yml")).CombinedOutput(); err != nil {
		m.t.Errorf("%v\n%s\n%s", err, out, &rules)
	}
}
