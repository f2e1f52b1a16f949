package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestTheFirstStartPrintsAKeyAndHowToUseIt(t *testing.T) {
	s := startServer(t, nil, "-db", databasePath(t))
	if !strings.HasPrefix(s.key, "pet_live_") || !keyForm.MatchString(s.key) {
		t.Errorf("the key is %s", s.key)
	}
	stdout := s.stdout.String()
	for _, line := range []string{
		"    " + s.key + "\n",
		`    curl -i -H "Authorization: Bearer ` + s.key + `" ` + s.address + "/pets\n",
	} {
		if strings.Count(stdout, line) != 1 {
			t.Errorf("want the line %q in %s", line, stdout)
		}
	}
	response, body := s.get("/pets", s.key)
	limit := response.Header.Get("X-RateLimit-Limit")
	if response.StatusCode != 200 || body != "[]" || limit != "60" {
		t.Errorf("with the key it is %s %s, with the limit %s", response.Status, body, limit)
	}
	if s.log.has(s.key) {
		t.Errorf("the key is in the log: %s", s.log)
	}
}

// TestAFirstKeyThatCannotBeShownIsNotMade: a stored key that nobody has seen would
// keep every later start from making one.
func TestAFirstKeyThatCannotBeShownIsNotMade(t *testing.T) {
	db := databasePath(t)
	args := []string{"-addr", "127.0.0.1:0", "-db", db}
	err := run(t.Context(), args, nil, nil, fullDisk{}, io.Discard)
	wantOneLine(t, err, false, "no key was made, since it cannot be shown", "no space left")
	next := startServer(t, nil, "-db", db)
	if next.key == "" {
		t.Errorf("the next start prints %s", &next.stdout)
	}
}

// firstKey makes the first key of a database.
func firstKey(ctx context.Context, s *store) (stdout, log string, err error) {
	var out, lines bytes.Buffer
	cmd := &invocation{
		process: &process{stdout: &out},
		log:     newLogger(&lines, "json", slog.LevelInfo),
	}
	err = printFirstKey(ctx, cmd, s, "http://localhost:1")
	return out.String(), lines.String(), err
}

func TestAFirstKeyThatCannotBeStoredIsNotShown(t *testing.T) {
	s := newStore(t)
	otherProgram(t, fileEngine(s).path, `CREATE TRIGGER full BEFORE INSERT ON api_keys
		BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`)
	out, log, err := firstKey(t.Context(), s)
	wantOneLine(t, err, false, "the disk is full")
	if out != "" || log != "" {
		t.Errorf("stdout is %s, the log %s", out, log)
	}
}

// TestOfSeveralServicesOneShowsAFirstKey, which opens the database. All of them have seen that there
// was no key.
func TestOfSeveralServicesOneShowsAFirstKey(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		var starting, services sync.WaitGroup
		var outs, logs [3]string
		var stores [3]*store
		for i := range stores {
			stores[i] = openDatabase(t, db)
			watch := func(st statement, _ []any) {
				if strings.HasPrefix(st.query, "INSERT INTO api_keys") {
					starting.Done()
					starting.Wait()
				}
			}
			stores[i].engine = &watchedEngine{engine: stores[i].engine, check: watch}
		}
		starting.Add(len(stores))
		for i, s := range stores {
			services.Go(func() {
				var err error
				outs[i], logs[i], err = firstKey(t.Context(), s)
				if err != nil {
					t.Error(err)
				}
			})
		}
		services.Wait()
		printed := regexp.MustCompile(`pet_live_\w+`).FindString(strings.Join(outs[:], ""))
		mustAuthenticate(t, newKeyring(stores[0], false), secret(printed), testTime)
		for i, out := range outs {
			want := "another program has made the first key"
			if out != "" {
				want = "key created"
			}
			hasKey := strings.Contains(out, printed)
			if hasKey != (out != "") || !strings.Contains(logs[i], `"INFO","msg":"`+want) {
				t.Errorf("a service prints %q and logs %s", out, logs[i])
			}
		}
	})
}

// TestAStopBeforeTheFirstKeyMakesNone, and is no failure.
func TestAStopBeforeTheFirstKeyMakesNone(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		ctx, stop := context.WithCancel(t.Context())
		stop()
		out, log, err := firstKey(ctx, s)
		must(t, err)
		keys := readNumber(t, s, "SELECT count(*) FROM api_keys")
		if keys != 0 || out != "" || log != "" {
			t.Errorf("there are %d keys, stdout is %q, the log %s", keys, out, log)
		}
	})
}

// TestAKeyWhoseOutcomeIsUnknownIsTakenBack, since it was not shown. It may come back without a leader
// that says otherwise.
func TestAKeyWhoseOutcomeIsUnknownIsTakenBack(t *testing.T) {
	for what, c := range map[string]struct {
		answer fakeAnswer // to the statement that stores the key
		leader int        // from then on
		keys   int64
		says   string
	}{
		"and is stored": {lose, 0, 0, "no key was made, since it cannot be shown: "},
		"and is not":    {reset, 0, 0, "a key that was not shown may be stored; if petstore key"},
		"and there is no leader": {lose, -1, 1,
			"a key that was not shown may be stored; if petstore key list has one that ends in "},
	} {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, fake *fakeCluster, s *store) {
				answerOnce(fake, func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
					defer fake.lead(c.leader)
					c.answer(n, w, r)
				})
				cmd := &invocation{process: &process{stdout: io.Discard}, log: testLog, store: s}
				err := keyCreate(t.Context(), cmd)
				wantOneLine(t, err, false, c.says, "whether it was stored is unknown")
				if keys := fake.number("SELECT count(*) FROM api_keys"); keys != c.keys {
					t.Errorf("%d keys are stored, want %d", keys, c.keys)
				}
			})
		})
	}
}

// It is no failure either that the service is asked to stop before it has started.
func TestAnUnknownVariableIsAWarning(t *testing.T) {
	unknown := []string{"PETSTORE_", "PETSTORE_ADR", "PETSTORE_BASE-URL", "PETSTORE_DATABASE",
		"PETSTORE_SKIP_IDS", "PETSTORE_base_url"}
	ofSomeCommand := []string{"PETSTORE_PLAN", "PETSTORE_OVERLAP"}
	ofOthers := []string{"XPETSTORE_X", "PETSTOREX", "HOME"}
	env := map[string]string{"PETSTORE_LOG_LEVEL": "info", "PETSTORE_BASE_URL": ""}
	for _, name := range slices.Concat(unknown, ofSomeCommand, ofOthers) {
		env[name] = "pet_live_abc"
	}
	_, log, err := petstore(t, env, "-addr", "127.0.0.1:0", "-db", madeDatabase(t))
	must(t, err)
	warned := allMatches(`"WARN","msg":"unknown environment.*,"variable":"(.*)"}`, log)
	slices.Sort(warned)
	if !slices.Equal(warned, unknown) {
		t.Errorf("it warns of %q, want %q", warned, unknown)
	}
	if strings.Contains(log, "pet_live_") {
		t.Errorf("a value is logged: %s", log)
	}
}

func TestARestartKeepsPetsUsageAndKeys(t *testing.T) {
	db := databasePath(t)
	env := map[string]string{"PETSTORE_BASE_URL": "https://pets.example/v1"}
	s := startServer(t, env, "-db", db)
	created, _ := s.post(`{"name":"Rex","categoryId":7}`)
	location := created.Header.Get("Location")
	if created.StatusCode != 201 || location != "https://pets.example/v1/pets/1" {
		t.Fatalf("the pet is %s, at %s", created.Status, location)
	}
	before, list := s.get("/pets", s.key)
	s.stop()

	again := startServer(t, nil, "-db", db)
	if again.stdout.Len() > 0 {
		t.Errorf("the second start prints %s", &again.stdout)
	}
	after, body := again.get("/pets", s.key)
	if body != list || after.Header.Get("ETag") != before.Header.Get("ETag") {
		t.Errorf("the list is %s and was %s", body, list)
	}
	if left := after.Header.Get("X-RateLimit-Remaining"); left != "57" {
		t.Errorf("after three requests and a restart %s are left, want 57", left)
	}
	const reset = "X-RateLimit-Reset"
	if after.Header.Get(reset) != before.Header.Get(reset) {
		t.Errorf("the minute ended at %s, and ends at %s",
			before.Header.Get(reset), after.Header.Get(reset))
	}
}

func TestStagingIssuesAndTakesTestKeysOnly(t *testing.T) {
	for flag, c := range map[string]struct {
		prefix  string
		ofOther string // the flag of key create
	}{
		"-staging=false": {"pet_live_", "-test=true"},
		"-staging=true":  {"pet_test_", "-test=false"},
	} {
		first := startServer(t, nil, "-db", databasePath(t), flag)
		if !strings.HasPrefix(first.key, c.prefix) {
			t.Errorf("with %s it prints the key %s", flag, first.key)
		}
		first.wantStatus(first.key, 200)

		others := newKeys(t)
		other := others.mint("create", c.ofOther)
		s := startServer(t, nil, "-db", others.db, flag)
		s.wantStatus(other, 401)
		if s.stdout.Len() > 0 {
			t.Errorf("a database that has a key gets another one: %s", &s.stdout)
		}
	}
}

func TestAServiceThatCannotStartSaysWhyInOneLine(t *testing.T) {
	port := listenAsParent(t).Addr().String()
	t.Chdir(t.TempDir())
	must(t, os.WriteFile("letter", []byte("this is a letter to my aunt"), 0o600))
	writePair(t, ".", "a")
	writePair(t, ".", "b")
	for _, c := range []struct{ what, args, want string }{
		{"a port in use", "-addr " + port, port + ".*in use"},
		{"a debug port in use", "-debug-addr " + port, port + ".*in use"},
		{"a missing folder", "-db no/pets.db", "cannot open the database .*no/pets.db"},
		{"a file that is no database", "-db letter", "letter.*not a database"},
		{"a folder for a database", "-db .", "directory"},
		{"a missing certificate", "-tls-cert no.pem -tls-key a.pem", "-tls-cert.*no.pem"},
		{"a certificate that is none", "-tls-cert letter -tls-key a.pem", "-tls-cert"},
		{"a key of another one", "-tls-cert b.pem -tls-key a.pem", "-tls-key.*match"},
	} {
		t.Run(c.what, func(t *testing.T) {
			args := append([]string{"-addr", "127.0.0.1:0"}, strings.Fields(c.args)...)
			err := run(t.Context(), args, nil, nil, io.Discard, io.Discard)
			wantOneLine(t, err, false)
			if err != nil && !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("it says %q, want %q", err, c.want)
			}
		})
	}
	// A service that cannot have its address has not made a database either.
	if _, err := os.Stat("petstore.db"); err == nil {
		t.Error("a database was made")
	}
}

// TestWhatIsNoRegularFileIsRefused: to open a pipe waits for its other end.
func TestWhatIsNoRegularFileIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	writePair(t, ".", "a")
	must(t, os.Symlink(os.DevNull, "link"))
	socket, err := net.Listen("unix", "socket")
	must(t, err)
	defer socket.Close()
	made, before := madeDatabase(t), filesIn(t, ".")
	for _, path := range []string{os.DevNull, "link", "socket"} {
		for _, line := range []string{
			"key list -db %s",
			"key create -db %s",
			"backup -db %s copy.db",
			"restore -db %s " + made,
			"restore %s",
			"-addr 127.0.0.1:0 -db %s",
			"-addr 127.0.0.1:0 -tls-cert %s -tls-key a.pem",
			"-addr 127.0.0.1:0 -tls-cert a.pem -tls-key %s",
		} {
			args := strings.Fields(fmt.Sprintf(line, path))
			err := run(t.Context(), args, nil, nil, io.Discard, io.Discard)
			wantRefusal(t, err, path, "is a pipe, a device or a socket, and no regular file")
		}
	}
	wantSameFiles(t, before, filesIn(t, "."))
}

// writePair writes a self-signed certificate for localhost and its key, into one file.
func writePair(t testing.TB, dir, name string) (path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{"localhost"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	path = filepath.Join(dir, name+".pem")
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	certText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	text := slices.Concat(keyText, certText)
	must(t, os.WriteFile(path, text, 0o600))
	return path
}

func TestTLSBringsHTTP2AtTheNameInTheCertificate(t *testing.T) {
	pair := writePair(t, t.TempDir(), "a")
	env := map[string]string{"PETSTORE_TLS_KEY": pair}
	s := startServer(t, env, "-db", databasePath(t), "-addr", "localhost:0", "-tls-cert", pair)
	if !strings.HasPrefix(s.address, "https://localhost:") {
		t.Errorf("the log says %s", s.address)
	}
	if !strings.Contains(s.stdout.String(), s.address+"/pets") {
		t.Errorf("stdout does not name %s: %s", s.address, &s.stdout)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(readText(t, pair)))
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	response, err := client.Get(s.address + "/pets")
	must(t, err)
	response.Body.Close()
	if response.StatusCode != 401 || response.ProtoMajor != 2 {
		t.Errorf("over TLS it is %s %s", response.Proto, response.Status)
	}
}

// TestNoKeyIsEverLogged puts the key where people put keys by mistake. The debug log names it by
// its id; 0 is a caller without a valid one.
func TestNoKeyIsEverLogged(t *testing.T) {
	env := map[string]string{"PETSTORE_LOG_LEVEL": "debug"}
	s := startServer(t, env, "-db", databasePath(t))
	for _, c := range []struct {
		method, path, key string
		loggedAs          int
	}{
		{"GET", "/pets", s.key, 1},
		{"GET", "/pets?" + s.key + "=%zz", s.key, 1},
		{"PUT", "/pets/" + s.key, s.key, 1},
		{"GET", "/" + s.key + "//x", s.key, 1},
		{"POST", "/pets", s.key, 1},
		{"GET", "/pets?access_token=" + s.key, "", 0},
		{"GET", "/pets", s.key + s.key, 0},
	} {
		url := s.address + c.path
		body := `{"name":1,"` + s.key + `":2}`
		response, _ := send(t, c.method, url, c.key, body)
		id := response.Header.Get("X-Request-Id")
		line := s.await("request")
		if line.Key != c.loggedAs || line.Request != id {
			t.Errorf("%s %s, the request %s, is logged as %+v", c.method, c.path, id, line)
		}
	}
	withoutPrefix := s.key[len("pet_live_"):]
	if s.log.has(withoutPrefix[:34]) {
		t.Errorf("a key is logged: %s", s.log)
	}
}

func TestTheAddressOfAServerIsOneToConnectTo(t *testing.T) {
	for _, c := range []struct {
		addr, listening string
		secure          bool
		want            string
	}{
		{"0.0.0.0:0", "0.0.0.0:8080", false, "http://127.0.0.1:8080"},
		{":0", "[::]:8080", false, "http://127.0.0.1:8080"},
		{"127.0.0.1:0", "127.0.0.1:8080", false, "http://127.0.0.1:8080"},
		{"[::1]:0", "[::1]:8080", false, "http://[::1]:8080"},
		{"localhost:0", "127.0.0.1:8080", false, "http://127.0.0.1:8080"},
		{"localhost:0", "[::1]:8080", false, "http://[::1]:8080"},
		{"localhost:0", "127.0.0.1:8443", true, "https://localhost:8443"},
		{"pets.example:https", "10.0.0.7:443", true, "https://pets.example:443"},
	} {
		listening := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.listening))
		if got := localURL(onlyAddress{addr: listening}, c.addr, c.secure); got != c.want {
			t.Errorf("with -addr %s the address is %s, want %s", c.addr, got, c.want)
		}
	}
}

// onlyAddress is a listener of which nothing is used but its address.
type onlyAddress struct {
	net.Listener
	addr net.Addr
}

func (l onlyAddress) Addr() net.Addr { return l.addr }

func TestExitStatus(t *testing.T) {
	for what, c := range map[string]struct {
		args   []string
		status int
		stderr string // a regular expression
	}{
		"a command that works is 0": {[]string{"version"}, 0, `^$`},
		"a failure is 1": {
			[]string{"-db", t.TempDir()}, 1,
			`^petstore: cannot open the database [^\n]*directory\n$`,
		},
		"an unknown flag is 2": {
			[]string{"-port", "80"}, 2, `^petstore: [^\n]*-port[^\n]*\n$`,
		},
	} {
		t.Run(what, func(t *testing.T) {
			wantExit(t, program(t, c.args...), c.status, c.stderr)
		})
	}
}

// closedPipe is a pipe for writing that nobody reads.
func closedPipe(t testing.TB) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	must(t, err)
	must(t, reader.Close())
	t.Cleanup(func() { writer.Close() })
	return writer
}

// TestAReaderOfStdoutMayLeaveEarly, as head(1) does. It has not seen a new key, nor all of an
// export.
func TestAReaderOfStdoutMayLeaveEarly(t *testing.T) {
	db := madeDatabase(t)
	mustCreate(t, openDatabase(t, db), rex)
	const keyNotMade = `^petstore: no key was made, since it cannot be shown: .*broken pipe\n$`
	for line, want := range map[string]struct {
		status int
		stderr string // a regular expression
	}{
		"key list":        {1, `^$`},
		"key usage -json": {1, `^$`},
		"help":            {1, `^$`},
		"pet export":      {1, `^$`},
		"key create":      {1, keyNotMade},
		"key rotate 1":    {1, keyNotMade},
	} {
		t.Run(line, func(t *testing.T) {
			cmd := program(t, strings.Fields(line)...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+db)
			cmd.Stdout = closedPipe(t)
			wantExit(t, cmd, want.status, want.stderr)
		})
	}
	keys, err := readKeys(t.Context(), openDatabase(t, db), 0, "")
	if err != nil || len(keys) != 1 {
		t.Errorf("there are %d keys, %v", len(keys), err)
	}
}

// TestDevNullIsAStdoutAsAnyOther, also when it is opened for reading and writing, as Python does.
func TestDevNullIsAStdoutAsAnyOther(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	for _, args := range [][]string{{"version"}, {"key", "create", "-db", databasePath(t)}} {
		cmd := program(t, args...)
		cmd.Stdout = null
		wantExit(t, cmd, 0, "")
	}
}

// listenAsParent listens as a parent does that hands its sockets over.
func listenAsParent(t testing.TB) *net.TCPListener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener.(*net.TCPListener)
}

// socket is what a parent can hand over.
type socket interface{ File() (*os.File, error) }

// programOn is a program that gets a socket from its parent, this process, as its file 3.
func programOn(t testing.TB, socket socket, args ...string) *testProcess {
	t.Helper()
	file, err := socket.File()
	must(t, err)
	t.Cleanup(func() { file.Close() })
	args = append(args, "-addr", "pets.example:1")
	cmd := program(t, args...)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Env = append(cmd.Env,
		"LISTEN_PID="+ownID,
		"LISTEN_FDS=1",
	)
	return &testProcess{t: t, Cmd: cmd}
}

// TestTheParentsSocketIsServed, and stays the parent's when the process ends.
func TestTheParentsSocketIsServed(t *testing.T) {
	parent := listenAsParent(t)
	db := databasePath(t)
	for range 2 { // processes
		p := programOn(t, parent, "-db", db)
		p.start()
		// The name is that in -addr, and the port that of the socket.
		port := parent.Addr().(*net.TCPAddr).Port
		if want := fmt.Sprintf("http://pets.example:%d/v1", port); p.address != want {
			t.Errorf("it is at %s, want %s", p.address, want)
		}
		response, _ := send(t, "GET", "http://"+parent.Addr().String()+"/v1/pets", "", "")
		if response.StatusCode != 401 {
			t.Errorf("the response is %s", response.Status)
		}
		must(t, p.Process.Signal(syscall.SIGTERM))
		must(t, p.Wait())
	}
}

// TestAWrongSocketOfTheParentIsRefused: the address in -addr would not be what the parent means.
func TestAWrongSocketOfTheParentIsRefused(t *testing.T) {
	udp, err := net.ListenUDP("udp", nil)
	must(t, err)
	defer udp.Close()
	local, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	must(t, err)
	defer local.Close()
	for what, c := range map[string]struct {
		socket  socket
		sockets string // LISTEN_FDS
		stderr  string
	}{
		"two sockets":     {listenAsParent(t), "2", "LISTEN_FDS must be 1"},
		"a UDP socket":    {udp, "1", "no TCP listener"},
		"a Unix listener": {local, "1", "no TCP listener"},
	} {
		t.Run(what, func(t *testing.T) {
			db := databasePath(t)
			p := programOn(t, c.socket, "-db", db)
			p.Env = append(p.Env, "LISTEN_FDS="+c.sockets)
			wantExit(t, p.Cmd, 2, "^petstore: .*"+c.stderr+".*\n$")
			if _, err := os.Stat(db); err == nil {
				t.Error("it has made a database")
			}
		})
	}
}

// TestASocketForAnotherProcessIsLeftAlone: the variables may have come from further up.
func TestASocketForAnotherProcessIsLeftAlone(t *testing.T) {
	env := map[string]string{
		"LISTEN_PID": fmt.Sprint(os.Getppid()),
		"LISTEN_FDS": "1",
	}
	s := startServer(t, env, "-db", databasePath(t))
	s.wantStatus(s.key, 200)
}

// TestAStopEndsAStartThatWaitsForANode, also while it looks whether there is a key: nothing is
// served, and nothing is left to be written.
func TestAStopEndsAStartThatWaitsForANode(t *testing.T) {
	// The requests 1 to 4, and 6 to 9, compare what is in use with the one node.
	for what, nth := range map[string]int64{"the nodes": 3, "the schema": 5, "the first key": 10} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 1)
			openCluster(t, c, openOrMake)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var asked atomic.Int64
			c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/status" {
					return false
				}
				if asked.Add(1) < nth {
					return false
				}
				stop()
				_, _ = io.ReadAll(r.Body) // the server then notices when the client leaves
				<-r.Context().Done()
				return true
			})
			var log bytes.Buffer
			args := []string{"-addr", "127.0.0.1:0", "-db", c.addresses()}
			must(t, run(ctx, args, nil, nil, io.Discard, &log))
			if log.Len() > 0 || asked.Load() != nth {
				t.Errorf("%d requests arrive, and the log says %s", asked.Load(), &log)
			}
		})
	}
}

// TestAStopDuringTheStartIsNoFailure: the exit status 0 is for every stop that was asked for. A
// cluster is read first, and then told that the service runs, before that is ready.
func TestAStopDuringTheStartIsNoFailure(t *testing.T) {
	for what, path := range map[string]string{"reading": "/", "the heartbeat": "/db/request"} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			openCluster(t, c, openOrMake)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
				if strings.HasPrefix(r.URL.Path, path) {
					cancel()
				}
				return false
			})
			args := []string{"-addr", "127.0.0.1:0", "-db", c.addresses()}
			must(t, run(ctx, args, nil, nil, io.Discard, io.Discard))
			if ctx.Err() == nil {
				t.Error("it was not stopped")
			}
		})
	}
}
