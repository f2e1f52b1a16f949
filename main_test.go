package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheFirstStartPrintsAKeyAndHowToUseIt(t *testing.T) {
	t.Parallel()
	for flag, prefix := range map[string]string{
		"-staging=false": "pet_live_",
		"-staging=true":  "pet_test_",
	} {
		s := startServer(t, nil, "-db", databasePath(t), flag)
		if !strings.HasPrefix(s.key, prefix) || !keyForm.MatchString(s.key) {
			t.Errorf("with %s the key is %s", flag, s.key)
		}
		stdout := s.stdout.String()
		for _, line := range []string{
			"    " + s.key + "\n",
			`    curl -i -H "Authorization: Bearer ` + s.key + `" ` + s.address + "/pets\n",
		} {
			wantCount(t, stdout, line, 1, "stdout")
		}
		response, body := s.list(s.key)
		limit := response.Header.Get("X-RateLimit-Limit")
		if response.StatusCode != 200 || body != "[]" || limit != "60" {
			t.Errorf("with the key it is %s %s, with the limit %s", response.Status, body, limit)
		}
		wantCount(t, s.log.String(), s.key, 0, "the log")
	}
}

// runServer runs the program on a free port until ctx ends.
func runServer(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	args = append([]string{"-addr", "127.0.0.1:0"}, args...)
	return run(ctx, args, nil, nil, stdout, stderr)
}

// TestAFirstKeyThatCannotBeShownIsNotMade: a stored key that nobody has seen would
// keep every later start from making one.
func TestAFirstKeyThatCannotBeShownIsNotMade(t *testing.T) {
	t.Parallel()
	db := databasePath(t)
	err := runServer(t.Context(), fullDisk{}, io.Discard, "-db", db)
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

// TestOfSeveralServicesOneShowsAFirstKey, which opens the database. All of them have seen that
// there was no key.
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
		others := 0
		for i, out := range outs {
			want := "key created"
			if out == "" {
				want = "another program has made the first key"
				others++
			}
			wantPart(t, logs[i], `"INFO","msg":"`+want, "the log of a service that prints ", out)
		}
		wantEqual(t, others, 2, "the number of services that print nothing")
	})
}

// TestAKeyWhoseOutcomeIsUnknownIsTakenBack, since it was not shown. It may come back without a
// leader that says otherwise.
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
		t.Run(what, clustered(func(t *testing.T, fake *fakeCluster, s *store) {
			answerOnce(fake, func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
				defer fake.lead(c.leader)
				c.answer(n, w, r)
			})
			cmd := &invocation{process: &process{stdout: io.Discard}, log: testLog, store: s}
			err := keyCreate(t.Context(), cmd)
			wantOneLine(t, err, false, c.says, "whether it was stored is unknown")
			wantEqual(t, fake.number("SELECT count(*) FROM api_keys"), c.keys,
				"the number of keys that are stored")
		}))
	}
}

// It is no failure either that the service is asked to stop before it has started.
func TestAnUnknownVariableIsAWarning(t *testing.T) {
	unknown := []string{"PETSTORE_", "PETSTORE_ADR", "PETSTORE_BASE-URL", "PETSTORE_DATABASE",
		"PETSTORE_SKIP_IDS", "PETSTORE_base_url"}
	ofSomeCommand := []string{"PETSTORE_PLAN", "PETSTORE_OVERLAP"}
	ofOthers := []string{"LOG", "XPETSTORE_LOG", "PETSTORELOG", "HOME"}
	env := map[string]string{"PETSTORE_CLIENT_IP_HEADER": "X-A", "PETSTORE_BASE_URL": ""}
	for _, name := range slices.Concat(unknown, ofSomeCommand, ofOthers) {
		env[name] = "pet_live_abc"
	}
	_, log, err := petstore(t, env, "-addr", "127.0.0.1:0", "-db", madeDatabase(t))
	must(t, err)
	warned := allMatches(`"WARN","msg":"unknown environment.*,"variable":"(.*)"}`, log)
	slices.Sort(warned)
	wantEqual(t, warned, unknown, "what it warns of")
	wantCount(t, log, "pet_live_", 0, "the log")
}

func TestARestartKeepsPetsUsageAndKeys(t *testing.T) {
	t.Parallel()
	db := databasePath(t)
	env := map[string]string{"PETSTORE_BASE_URL": "https://pets.example/v1"}
	s := startServer(t, env, "-db", db)
	created, _ := s.post(`{"name":"Rex","categoryId":7}`)
	wantEqual(t, created.Header.Get("Location"), "https://pets.example/v1/pets/1",
		"the address of the pet")
	before, list := s.list(s.key)
	s.stop()

	again := startServer(t, nil, "-db", db)
	wantEqual(t, again.stdout.String(), "", "what the second start prints")
	after, body := again.list(s.key)
	before.Header.Set("X-RateLimit-Remaining", "57") // after three requests
	for _, name := range []string{"ETag", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
		wantEqual(t, after.Header.Get(name), before.Header.Get(name), name)
	}
	wantEqual(t, body, list, "the list")
}

func TestAServiceThatCannotStartSaysWhyInOneLine(t *testing.T) {
	port := listenAsParent(t).Addr().String()
	t.Chdir(t.TempDir())
	writeText(t, "letter", "this is a letter to my aunt")
	writePair(t, ".", "a")
	writePair(t, ".", "b")
	for line, want := range rowsOf(t, strings.ReplaceAll(`
		-addr PORT => PORT.*in use
		-debug-addr PORT => PORT.*in use
		-db no/pets.db => cannot open the database .*no/pets.db
		-db letter => letter.*not a database
		-db . => directory
		-tls-cert no.pem -tls-key a.pem => -tls-cert.*no.pem
		-tls-cert letter -tls-key a.pem => -tls-cert
		-tls-cert b.pem -tls-key a.pem => -tls-key.*match`, "PORT", port)) {
		err := runServer(t.Context(), io.Discard, io.Discard, strings.Fields(line)...)
		wantOneLine(t, err, false, strings.Split(want, ".*")...)
	}
	// A service that cannot have its address has not made a database either.
	wantMissing(t, "petstore.db")
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
		names := strings.NewReplacer("PATH", path, "MADE", made)
		for line := range linesOf(names.Replace(`
			key list -db PATH
			key create -db PATH
			backup -db PATH copy.db
			restore -db PATH MADE
			restore PATH
			-addr 127.0.0.1:0 -db PATH
			-addr 127.0.0.1:0 -tls-cert PATH -tls-key a.pem
			-addr 127.0.0.1:0 -tls-cert a.pem -tls-key PATH`)) {
			args := strings.Fields(line)
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
	writeText(t, path, string(text))
	return path
}

func TestTLSBringsHTTP2AtTheNameInTheCertificate(t *testing.T) {
	t.Parallel()
	pair := writePair(t, t.TempDir(), "a")
	env := map[string]string{"PETSTORE_TLS_KEY": pair}
	s := startServer(t, env, "-db", databasePath(t), "-addr", "localhost:0", "-tls-cert", pair)
	wantPart(t, s.address, "https://localhost:", "the address")
	wantPart(t, s.stdout.String(), s.address+"/pets", "stdout")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(readText(t, pair)))
	host := strings.TrimSuffix(strings.TrimPrefix(s.address, "https://"), "/v1")
	conn, err := tls.Dial("tcp", host, &tls.Config{
		RootCAs:    roots,
		NextProtos: []string{"h2"},
	})
	must(t, err)
	defer conn.Close()
	wantEqual(t, conn.ConnectionState().NegotiatedProtocol, "h2",
		"the protocol over TLS")
}

// TestNoKeyIsEverLogged puts the key where people put keys by mistake. The debug log names it by
// its id; 0 is a caller without a valid one.
func TestNoKeyIsEverLogged(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PETSTORE_LOG_LEVEL": "debug"}
	s := startServer(t, env, "-db", databasePath(t))
	for line, want := range rowsOf(t, `
		GET /pets KEY => 1
		GET /pets?KEY=%zz KEY => 1
		PUT /pets/KEY KEY => 1
		GET /KEY//x KEY => 1
		POST /pets KEY => 1
		GET /pets?access_token=KEY none => 0
		GET /pets KEYKEY => 0`) {
		words := strings.Fields(strings.ReplaceAll(line, "KEY", s.key))
		body := `{"name":1,"` + s.key + `":2}`
		response, _ := send(t, words[0], s.address+words[1], words[2], body)
		id := response.Header.Get("X-Request-Id")
		logged := s.await("request")
		if fmt.Sprint(logged.Key) != want || logged.Request != id {
			t.Errorf("%s, the request %s, is logged as %+v", line, id, logged)
		}
	}
	withoutPrefix := s.key[len("pet_live_"):]
	wantCount(t, s.log.String(), withoutPrefix[:34], 0, "the log")
}

func TestTheAddressOfAServerIsOneToConnectTo(t *testing.T) {
	for addresses, want := range rowsOf(t, `
		0.0.0.0:0 on 0.0.0.0:8080 => http://127.0.0.1:8080
		:0 on [::]:8080 => http://127.0.0.1:8080
		127.0.0.1:0 on 127.0.0.1:8080 => http://127.0.0.1:8080
		[::1]:0 on [::1]:8080 => http://[::1]:8080
		localhost:0 on 127.0.0.1:8080 => http://127.0.0.1:8080
		localhost:0 on [::1]:8080 => http://[::1]:8080
		localhost:0 on 127.0.0.1:8443 => https://localhost:8443
		pets.example:https on 10.0.0.7:443 => https://pets.example:443`) {
		addr, port, _ := strings.Cut(addresses, " on ")
		listening := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(port))
		isSecure := strings.HasPrefix(want, "https:")
		got := localURL(onlyAddress{addr: listening}, addr, isSecure)
		wantEqual(t, got, want, "the address with -addr ", addresses)
	}
}

// onlyAddress is a listener of which nothing is used but its address.
type onlyAddress struct {
	net.Listener
	addr net.Addr
}

func (l onlyAddress) Addr() net.Addr { return l.addr }

func TestExitStatus(t *testing.T) {
	db := madeDatabase(t)
	mustCreate(t, openDatabase(t, db), rex)
	reader, unread, err := os.Pipe()
	must(t, err)
	must(t, reader.Close()) // as when head(1) has left
	defer unread.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	// Who leaves early has not seen a new key, nor all of an export. /dev/null is a stdout as any
	// other, also if it is opened for reading, as Python does.
	for row, want := range rowsOf(t, strings.ReplaceAll(`
		version to null => 0 ^$
		-db . to null => 1 ^petstore: cannot open the database [^\n]*directory\n$
		-port 80 to null => 2 ^petstore: [^\n]*-port[^\n]*\n$
		key list to unread => 1 ^$
		key usage -json to unread => 1 ^$
		help to unread => 1 ^$
		pet export to unread => 1 ^$
		key create to unread => 1 UNSEEN
		key rotate 1 to unread => 1 UNSEEN
		key create to null => 0 "msg":"key created"`, "UNSEEN",
		`^petstore: no key was made, since it cannot be shown: .*broken pipe\n$`)) {
		t.Run(row, func(t *testing.T) {
			line, place, _ := strings.Cut(row, " to ")
			cmd := program(t, strings.Fields(line)...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+db)
			cmd.Stdout = map[string]*os.File{"null": null, "unread": unread}[place]
			status, stderr, _ := strings.Cut(want, " ")
			wantExit(t, cmd, int(status[0]-'0'), stderr)
		})
	}
	keys, err := readKeys(t.Context(), openDatabase(t, db), 0, "")
	if err != nil || len(keys) != 2 {
		t.Errorf("there are %d keys, %v", len(keys), err)
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
	takesSeconds(t)
	t.Parallel()
	parent := listenAsParent(t)
	db := databasePath(t)
	for range 2 { // processes
		p := programOn(t, parent, "-db", db)
		p.start()
		// The name is that in -addr, and the port that of the socket.
		port := parent.Addr().(*net.TCPAddr).Port
		wantEqual(t, p.address, fmt.Sprintf("http://pets.example:%d/v1", port), "the address")
		response, _ := send(t, "GET", "http://"+parent.Addr().String()+"/v1/pets", "", "")
		wantEqual(t, response.StatusCode, 401, "the status without a key")
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
		"a UDP socket":    {udp, "1", "not a TCP listener"},
		"a Unix listener": {local, "1", "not a TCP listener"},
	} {
		t.Run(what, func(t *testing.T) {
			db := databasePath(t)
			p := programOn(t, c.socket, "-db", db)
			p.Env = append(p.Env, "LISTEN_FDS="+c.sockets)
			wantExit(t, p.Cmd, 2, "^petstore: .*"+c.stderr+".*\n$")
			wantMissing(t, db)
		})
	}
}

// TestASocketForAnotherProcessIsLeftAlone: the variables may have come from further up.
func TestASocketForAnotherProcessIsLeftAlone(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	env := map[string]string{
		"LISTEN_PID": fmt.Sprint(os.Getppid()),
		"LISTEN_FDS": "1",
	}
	s := startServer(t, env, "-db", databasePath(t))
	response, _ := s.list(s.key)
	wantEqual(t, response.StatusCode, 200, "the status")
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
			asked := c.answerNth(nth, func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
				stop()
				_, _ = io.ReadAll(r.Body) // the server then notices when the client leaves
				hang(n, w, r)
			})
			var log bytes.Buffer
			must(t, runServer(ctx, io.Discard, &log, "-db", c.addresses()))
			if log.Len() > 0 || asked.Load() != nth {
				t.Errorf("%d requests arrive, and the log says %s", asked.Load(), &log)
			}
		})
	}
}

// What runs beside the requests, in fake time.

// background is a service in fake time with what runs beside its requests.
type background struct {
	*service
	*testing.T
	path     string // of its database
	log      *serverLog
	stop     func() error
	operator *operator
}

// withBackground runs a test in fake time, with a service and its work beside requests: it writes
// usage every 750 ms, looks for edits and for its files, and removes what is old.
//
//	withBackground(t, nil, func(b *background) {
//		b.use()                                // counts a request
//		time.Sleep(751 * time.Millisecond)     // which takes no time
//		b.wantStored(1)
//		must(b, b.stop())                      // as a service stops
//		b.wantLog()                            // and nothing was logged
//	})
//
// check, if there is one, sees the service's statements before they run, and may hold them up.
func withBackground(t *testing.T, check func(statement), test func(*background)) {
	t.Helper()
	withPair(t, nil, check, test)
}

// withPair does the same for a service that looks after a certificate.
func withPair(t *testing.T, pair *tlsPair, check func(statement),
	test func(*background)) {
	t.Helper()
	path := databasePath(t) // outside, since its folder outlives the fake time
	synctest.Test(t, func(t *testing.T) {
		s := openDatabaseFor(t, path, openToServe)
		if check != nil {
			watch := func(st statement, _ []any) { check(st) }
			s.engine = &watchedEngine{engine: s.engine, check: watch}
		}
		log := newServerLog()
		service := newService(s, settings{}, newLogger(log, "json", slog.LevelInfo))
		operator := newOperator(service)
		stop := runBackground(service, operator, pair)
		test(&background{service, t, path, log, stop, operator})
	})
}

// serve serves with the handler until ctx ends, and then stops the background.
func (b *background) serve(ctx context.Context, handler http.Handler, l net.Listener) error {
	return serveUntil(ctx, newServer(testLog, nil, handler), b.service, l, b.stop)
}

// stopDuring stops the background while it waits for release, which is closed then.
func (b *background) stopDuring(release chan bool) {
	b.Helper()
	stopped := make(chan error)
	go func() { stopped <- b.stop() }()
	synctest.Wait()
	close(release)
	must(b, <-stopped)
}

// use counts one request of the account 1.
func (b *background) use() {
	b.Helper()
	account := &account{usageID: 1, quota: quota{10, 10}}
	must(b, errorOf(b.ledger.charge(account, instantOf(time.Now()))))
}

// wantStored checks how many of these requests are in the database.
func (b *background) wantStored(want int64) {
	b.Helper()
	u, err := readUsage(context.Background(), b.store, 1)
	must(b, err)
	wantEqual(b, u.minute.used, want, "the number of requests that are stored")
}

// wantLog checks that the log has only lines with these texts, in this order.
func (b *background) wantLog(texts ...string) {
	b.Helper()
	lines := slices.Collect(strings.Lines(b.log.String()))
	if !slices.EqualFunc(lines, texts, strings.Contains) {
		b.Errorf("the log is %s, want lines with %q", brief(b.log.String()), texts)
	}
}

func TestWhatRunsBesideTheRequestsIsDoneInTime(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		other := openDatabase(b, b.path)
		token := mustInsertKey(b, b.store, apiKey{})
		mustAuthenticate(b, b.keys, token, time.Now())
		must(b, revokeNow(b.Context(), other, 1, instantOf(time.Now())))
		used := instantOf(time.Now())
		b.use()
		b.ledger.noteDeprecatedUse(1, used)
		oldDay := sqlOf("INSERT INTO usage_days VALUES (1, 1, 1, 0, 0)")
		mustWrite(b, b.store, sqlOf(oldRecords), oldDay)

		time.Sleep(time.Second)
		b.wantStored(1)
		wantDeprecatedUse(b, b.store, 1, used)
		mustRefuseKey(b, b.keys, bearerHeader(token), time.Now(), CodeInvalidKey)

		time.Sleep(time.Minute)
		wantRows(b, b.store, "idempotency", 0)
		wantRows(b, b.store, "usage_days", 1) // that of today

		b.use()
		b.use()
		must(b, b.stop())
		b.wantStored(2) // in a window that has begun since
		b.wantLog()
	})
}

const oldRecords = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
	INSERT INTO idempotency SELECT 1, 'old ' || i, x'00', 1, 1 FROM n`

// TestAStopEndsThePurge: with a lot to delete it would hold the stop up.
func TestAStopEndsThePurge(t *testing.T) {
	var deletes, release chan bool
	check := func(st statement) {
		if strings.HasPrefix(st.query, "DELETE FROM idempotency") {
			deletes <- true
			<-release
		}
	}
	withBackground(t, check, func(b *background) {
		deletes, release = make(chan bool), make(chan bool)
		mustWrite(b, b.store, sqlOf(oldRecords))
		<-deletes
		b.stopDuring(release)
		wantRows(b, b.store, "idempotency", 2400) // after one transaction
		b.wantLog()
	})
}

// TestAPanicInTheBackgroundEndsNothing but the work that it happened in.
func TestAPanicInTheBackgroundEndsNothing(t *testing.T) {
	var broken atomic.Bool
	check := func(st statement) {
		if broken.Load() && !strings.HasPrefix(st.query, "SELECT") {
			panic("boom")
		}
	}
	withBackground(t, check, func(b *background) {
		broken.Store(true)
		b.use()
		time.Sleep(751 * time.Millisecond)
		broken.Store(false)
		time.Sleep(750 * time.Millisecond)
		b.wantStored(1)
		b.wantLog(`"ERROR","msg":"cannot write usage","error":"panic: boom`,
			`"msg":"can write usage again"`)
		must(b, b.stop())
	})
}

func TestWhatGoesOnFailingIsLoggedOnce(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		b.use()
		must(b, b.store.Close())
		for range 180 { // seconds in which somebody has the operator's page open
			b.operator.reportReading.wanted.Store(true)
			b.operator.storedReading.wanted.Store(true)
			time.Sleep(time.Second)
		}
		wantOneLine(b, b.stop(), false, "the usage counted last is not stored")
		for _, what := range []string{"look for edits by other programs", "write usage",
			"remove expired Idempotency-Keys and old usage", "read the report on the keys",
			"count the pets"} {
			message := `"level":"ERROR","msg":"cannot ` + what + `"`
			wantCount(b, b.log.String(), message, 1, "the log")
		}
	})
}

// TestAStopDoesNotRepeatWhatCannotSucceed: a file of the database is gone for good.
func TestAStopDoesNotRepeatWhatCannotSucceed(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		b.use()
		must(b, os.Remove(b.path+"-lock"))
		wantTime(b, "the stop", 0, 0, errLostFile, b.stop)
	})
}

// savedCopies are the copies beside a database that lost its name.
func savedCopies(t testing.TB, path string) []string {
	t.Helper()
	saved, err := filepath.Glob(path + ".*.saved")
	must(t, err)
	return saved
}

// TestWhatLosesItsNameIsSavedOnce within a second, without a write, and anew once more was stored.
// The errors of writes name the copy.
func TestWhatLosesItsNameIsSavedOnce(t *testing.T) {
	for what, replace := range map[string]bool{"removed": false, "replaced": true} {
		t.Run(what, func(t *testing.T) {
			withBackground(t, nil, func(b *background) {
				wantSaved := func(pets, copies int64) {
					b.Helper()
					time.Sleep(1001 * time.Millisecond)
					synctest.Wait()
					saved := savedCopies(b, b.path)
					if int64(len(saved)) != copies {
						b.Fatalf("there are %d copies, want %d\n%s", len(saved), copies, b.log)
					}
					last := saved[len(saved)-1]
					wantSound(b.T, last, pets)
					info, err := os.Stat(last)
					must(b, err)
					wantEqual(b, info.Mode().Perm(), 0o600, "who may read it")
					wantNoCreate(b.T, b.store, "all that was confirmed is saved in "+last)
				}
				mustCreate(b, b.store, rex)
				putBack := moveAway(b, b.path)
				if replace {
					writeText(b, b.path, "another")
				}
				wantSaved(1, 1)
				time.Sleep(5 * time.Minute)
				wantSaved(1, 1)
				outdated := savedCopies(b, b.path)[0]
				putBack()
				time.Sleep(time.Minute)
				told := `is not in the copy: delete it","copy":"` + outdated
				wantCount(b, b.log.String(), told, 1, "the log once the file is back")
				mustCreate(b, b.store, rex)
				moveAway(b, b.path)
				wantSaved(2, 2)
				wantError(b, b.stop(), errLostFile, "the stop")
				wantCount(b, b.log.String(), `"msg":"what was confirmed is saved`, 2, "the log")
			})
		})
	}
}

// TestAStopSavesWhatHasLostItsName, if nobody has looked since, and says where.
func TestAStopSavesWhatHasLostItsName(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		mustCreate(b, b.store, rex)
		b.use()
		moveAway(b, b.path)
		err := b.stop()
		saved := savedCopies(b, b.path)
		if len(saved) != 1 {
			b.Fatalf("there are %q", saved)
		}
		wantSound(b.T, saved[0], 1)
		wantOneLine(b, err, false, "the usage counted last is not stored",
			"all that was confirmed is saved in "+saved[0])
	})
}

// TestACopyThatCannotBeMadeIsTriedEachMinute, and the reason is told: here there is no folder.
func TestACopyThatCannotBeMadeIsTriedEachMinute(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		mustCreate(b, b.store, rex)
		folder := filepath.Dir(b.path)
		moveAway(b, folder)
		time.Sleep(1001 * time.Millisecond)
		wantNoCreate(b.T, b.store, "saved, which is tried each minute: open "+b.path)
		must(b, os.Mkdir(folder, 0o700))
		time.Sleep(50 * time.Second)
		wantEqual(b, len(savedCopies(b, b.path)), 0, "the copies within a minute")
		time.Sleep(11 * time.Second)
		wantSound(b.T, savedCopies(b, b.path)[0], 1)
		wantError(b, b.stop(), errLostFile, "the stop")
		wantCount(b, b.log.String(), `"ERROR","msg":"cannot keep the files of the database"`, 1,
			"the log")
	})
}

// TestAWholeLogThatLosesItsNameNeedsNoCopy: it is emptied into the database, without a write. The
// stop says so.
func TestAWholeLogThatLosesItsNameNeedsNoCopy(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		mustCreate(b, b.store, rex)
		must(b, os.Remove(b.path+"-wal"))
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		wantEqual(b, len(savedCopies(b, b.path)), 0, "the copies")
		copied := filepath.Join(b.TempDir(), "copy.db")
		writeText(b, copied, readText(b, b.path))
		wantSound(b.T, copied, 1) // as after a kill
		wantError(b, b.stop(), errLostFile, "the stop")
	})
}

// TestALogWithoutANameIsSavedBesideAnotherIndex, since it cannot be emptied: other programs may use
// the database by that index. Writes name the copy.
func TestALogWithoutANameIsSavedBesideAnotherIndex(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		mustCreate(b, b.store, rex)
		for _, suffix := range []string{"-wal", "-shm"} {
			must(b, os.Remove(b.path+suffix))
			writeText(b, b.path+suffix, "another")
		}
		wantNoCreate(b.T, b.store, "do not stop the service before what was confirmed is saved")
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		saved := savedCopies(b, b.path)
		if len(saved) != 1 {
			b.Fatalf("there are %q", saved)
		}
		wantSound(b.T, saved[0], 1)
		wantNoCreate(b.T, b.store, "all that was confirmed is saved in "+saved[0])
		wantError(b, b.stop(), errLostFile, "the stop")
		fileEngine(b.store).files = nil // otherwise the connections would end with the process
	})
}

// TestWhatIsSlowIsNotRepeatedAfterAStop: it would hold up the stop once more.
func TestWhatIsSlowIsNotRepeatedAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		work := func(context.Context) error {
			times++
			time.Sleep(5 * time.Second)
			return nil
		}
		for range 30 { // of two channels that are ready, select takes any
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			repeat(ctx, time.Second, "work", work, testLog)
			cancel()
		}
		wantEqual(t, times, 30, "how often slow work is done in 30 stops")
	})
}

// TestTheLastWritingOfUsageIsTriedFor10Seconds: a lock that is held when the service stops is
// commonly let go a moment later.
func TestTheLastWritingOfUsageIsTriedFor10Seconds(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	const fullDisk = `CREATE TRIGGER full BEFORE INSERT ON usage
		BEGIN SELECT RAISE(ABORT, 'full'); END`
	for policy, c := range map[string]struct {
		broken, repaired string // what another program does when the service stops, and later
		after            time.Duration
	}{
		"a lock that is let go in time":   {"BEGIN IMMEDIATE", "ROLLBACK", 9 * time.Second},
		"a lock that is held for longer":  {"BEGIN IMMEDIATE", "ROLLBACK", 20 * time.Second},
		"a disk that is full for a while": {fullDisk, "DROP TRIGGER full", 9 * time.Second},
	} {
		t.Run(policy, func(t *testing.T) {
			withBackground(t, nil, func(b *background) {
				time.Sleep(time.Millisecond) // so that no tick falls on the end
				b.use()
				outside := otherProgram(b, b.path, c.broken)
				repaired := time.AfterFunc(c.after, func() {
					_, _ = outside.Exec(c.repaired)
				})
				defer repaired.Stop()
				var failure error
				stored := int64(1)
				takes := min(c.after, 10*time.Second)
				if takes < c.after {
					failure = errUnavailable
					stored = 0
				}
				wantTime(b, "the stop", takes, takes+time.Second, failure, b.stop)
				b.wantStored(stored)
			})
		})
	}
}

// TestAStopWaitsForTheUsageThatIsBeingWritten, and does not write it again.
func TestAStopWaitsForTheUsageThatIsBeingWritten(t *testing.T) {
	var writes int
	var release chan bool
	check := func(st statement) {
		if st.query == mergeUsages {
			writes++
			<-release
		}
	}
	withBackground(t, check, func(b *background) {
		release = make(chan bool)
		b.use()
		time.Sleep(751 * time.Millisecond)
		b.stopDuring(release)
		b.wantStored(1)
		wantEqual(b, writes, 1, "how often it is written")
	})
}

// testPair is a pair that has been read from files.
func testPair(t testing.TB) *tlsPair {
	t.Helper()
	file := writePair(t, t.TempDir(), "a")
	pair := &tlsPair{certFile: file, keyFile: file}
	must(t, pair.renew())
	return pair
}

// TestARenewedCertificateIsServed to new connections, and a broken one never.
func TestARenewedCertificateIsServed(t *testing.T) {
	pair := testPair(t)
	renewed := readText(t, writePair(t, t.TempDir(), "b"))
	const (
		broken = `"level":"ERROR","msg":"cannot use the files of -tls-cert and -tls-key"`
		again  = `"level":"INFO","msg":"can use the files of -tls-cert and -tls-key again"`
	)
	withPair(t, pair, nil, func(b *background) {
		s, l := startFront(b, pair, http.NotFound)
		o := newPage(b.service, pair, "", &logQueue{})
		wantServed := func(want string, logged ...string) {
			b.Helper()
			time.Sleep(31 * time.Second)
			unusable := float64(len(logged) % 2)
			metrics := o.currentMetrics().numbers
			wantEqual(b, metrics["petstore_certificate_files_unusable"], unusable,
				"the metric of files that cannot be used")
			conn := tlsClient(l.pipe(), "http/1.1")
			defer conn.Close()
			must(b, conn.Handshake())
			wantEqual(b, conn.ConnectionState().PeerCertificates[0].Subject.CommonName, want,
				"the certificate of a new connection")
			b.wantLog(logged...)
		}
		wantServed("a")
		writeText(b, pair.certFile, renewed[:20]) // half written
		wantServed("a", broken)
		wantServed("a", broken) // once
		writeText(b, pair.certFile, renewed)
		wantServed("b", broken, again)
		end := pair.certificate.Load().Leaf.NotAfter
		const expiry = "petstore_certificate_expiry_timestamp_seconds"
		if got := o.currentMetrics().numbers[expiry]; got != float64(end.Unix()) || got == 0 {
			b.Errorf("the certificate ends at %v, want %v", got, end)
		}
		must(b, s.stop(b.Context(), l))
		must(b, b.stop())
	})
}

// TestACertificateThatHasEndedIsWarnedOf at the start, and served all the same.
func TestACertificateThatHasEndedIsWarnedOf(t *testing.T) {
	const warning = `"level":"WARN","msg":"the certificate of -tls-cert has ended`
	pair := writePair(t, t.TempDir(), "a") // of an hour
	for after, want := range map[time.Duration]int{59 * time.Minute: 0, 61 * time.Minute: 1} {
		cmd, err := parseCommand("serve", []string{"-tls-cert", pair, "-tls-key", pair})
		must(t, err)
		var log bytes.Buffer
		cmd.log = newLogger(&log, "json", slog.LevelInfo)
		read, err := readPair(cmd, time.Now().Add(after))
		must(t, err)
		wantCount(t, log.String(), warning, want, "the log after ", after)
		if read.certificate.Load() == nil {
			t.Error("there is no certificate")
		}
	}
}

// TestAStopEndsAStartThatWaitsForAResolver, which may be mute, and makes no database.
func TestAStopEndsAStartThatWaitsForAResolver(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	db := databasePath(t)
	for _, addresses := range [][]string{
		{"-addr", "pets.invalid:0"}, {"-debug-addr", "localhost:0"},
	} {
		args := append(addresses, "-db", db)
		must(t, runServer(ctx, io.Discard, io.Discard, args...))
	}
	wantError(t, errorOf(listen(ctx, "pets.invalid:0", nil)), context.Canceled, "the listening")
	wantMissing(t, db)
}

// TestAStopWaitsForNoCertificate: its file may be on a file system that hangs. Here the log hangs
// in which its renewal says that there is no file.
func TestAStopWaitsForNoCertificate(t *testing.T) {
	pair := testPair(t)
	pair.certFile += ".missing"
	withPair(t, pair, nil, func(b *background) {
		for range cap(b.log.lines) {
			b.log.lines <- serverLine{}
		}
		time.Sleep(31 * time.Second)
		b.use()
		must(b, b.stop())
		b.wantStored(1)
		b.wantLog("use the files of -tls-cert")
		<-b.log.lines // lets the renewal end
	})
}

// TestAWrongClockIsWarnedOf once a minute, when a stored minute ends later than clocks within a
// second of each other can make it end.
func TestAWrongClockIsWarnedOf(t *testing.T) {
	for ahead, want := range map[time.Duration]int{61: 0, 62: 1, 200: 1} {
		withBackground(t, nil, func(b *background) {
			minute := bucket{used: 1, ends: instantOf(time.Now().Add(ahead * time.Second))}
			mustWrite(b, b.store, saveUsage(1, &usage{minute: minute}))
			b.use()
			time.Sleep(3 * time.Minute)
			must(b, b.stop())
			wantCount(b, b.log.String(), "clock is wrong", want,
				"the log of a minute that ends in ", int(ahead), " s")
		})
	}
}

// What peers may do with connections, in fake time.

// Requests on the wire. The first two of HTTP/2 begin a connection without settings, and ask for /
// on the first stream.
const (
	http2Begin   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	http2Request = "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x87\x41\x01x"
	http2Post    = "\x00\x00\x06\x01\x04\x00\x00\x00\x01\x83\x84\x87\x41\x01x" // and a body to come
	getRequest   = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	postHead     = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
)

func TestSlowClientsAreCutOff(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}
	for name, c := range map[string]struct {
		sent  string
		reads bool // what is sent back
		after time.Duration
	}{
		"in the middle of a head":         {getRequest[:20], true, 5 * time.Second},
		"in the middle of a body":         {postHead + "abc", true, 15 * time.Second},
		"that does not read the response": {getRequest, false, 30 * time.Second},
		"after a response":                {getRequest, true, 2 * time.Minute},
		"in the middle of a second head":  {getRequest + getRequest[:20], true, 5 * time.Second},
		"in the middle of a second body":  {postHead + "abcd" + postHead, true, 15 * time.Second},
	} {
		t.Run(name, bubble(func(t *testing.T) {
			s, l := startFront(t, nil, echo)
			began := time.Now()
			conn := l.pipe()
			if c.reads {
				go func() { _, _ = io.WriteString(conn, c.sent) }()
				_, _ = io.Copy(io.Discard, conn)
			} else {
				// Of what follows the request, the server reads one byte meanwhile.
				for _, sent := range []string{c.sent, "x", "y"} {
					_, _ = io.WriteString(conn, sent)
				}
			}
			wantEqual(t, time.Since(began), c.after, "the time until the connection ends")
			must(t, s.stop(t.Context(), l))
		}))
	}
}

func TestHeadsAreBounded(t *testing.T) {
	wantEqual(t, newServer(testLog, nil, nil).MaxHeaderBytes, 16<<10,
		"the most bytes of a head") // as the README says
}

// TestPeersThatReadNothingAreCutOff, also with HTTP/2, where one connection takes many requests.
func TestPeersThatReadNothingAreCutOff(t *testing.T) {
	pair := testPair(t)
	synctest.Test(t, func(t *testing.T) {
		s, l := startFront(t, pair, http.NotFound)
		raw := l.pipe()
		peer := tlsClient(raw, "h2")
		_, _ = io.WriteString(peer, http2Begin)
		_, _ = io.WriteString(peer, http2Request)
		time.Sleep(17 * time.Second)
		if raw.SetDeadline(time.Now()) == nil { // it is an error once the server has closed
			t.Error("the connection is still open")
		}
		must(t, s.stop(t.Context(), l))
	})
}

// TestOfAConnectionTenRequestsAreHandledAtOnce with HTTP/2. More wait, if they are small, and are
// handled in their turn; one that its client gives up leaves.
func TestOfAConnectionTenRequestsAreHandledAtOnce(t *testing.T) {
	pair := testPair(t)
	fields := func(head int) http.Header { // of a request whose head counts so much
		const others = len("GET/shop.invalid") + len("User-Agent") + len("x") + 32
		return http.Header{"User-Agent": {"x"}, "A": {strings.Repeat("x", head-others-1-32)}}
	}
	for what, c := range map[string]struct {
		header  http.Header
		body    string
		length  int64 // -1: unknown
		trailer http.Header
		waits   bool
	}{
		"a head of 2 KiB":           {header: fields(2048), waits: true},
		"a head of more":            {header: fields(2049)},
		"a body of 4 KiB":           {body: strings.Repeat("x", 4096), length: 4096, waits: true},
		"a body of more":            {body: strings.Repeat("x", 4097), length: 4097},
		"a body of unknown length":  {body: "x", length: -1},
		"trailers that are to come": {body: "x", length: 1, trailer: http.Header{"X": nil}},
	} {
		t.Run(what, bubble(func(t *testing.T) {
			var handled atomic.Int64
			free := make(chan bool)
			s, l := startFront(t, pair, func(http.ResponseWriter, *http.Request) {
				handled.Add(1)
				<-free
			})
			transport := &http.Transport{
				ForceAttemptHTTP2: true, DisableCompression: true,
				DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					conn := tlsClient(l.pipe(), "h2")
					return conn, conn.HandshakeContext(ctx)
				},
			}
			ends := make(chan error, 99)
			send := func(ctx context.Context) {
				r, err := http.NewRequestWithContext(ctx, "GET", "https://shop.invalid/",
					strings.NewReader(c.body))
				must(t, err)
				r.Header, r.ContentLength, r.Trailer = c.header.Clone(), c.length, c.trailer.Clone()
				if c.length == 0 {
					r.Body = nil
				}
				if r.Header == nil {
					r.Header = http.Header{}
				}
				response, err := transport.RoundTrip(r)
				if err == nil {
					response.Body.Close()
				}
				ends <- err
			}
			for range maxHandled {
				go send(t.Context())
				synctest.Wait()
			}
			wantEqual(t, handled.Load(), maxHandled, "requests that are handled, whatever they are")
			givenUp, giveUp := context.WithCancel(t.Context())
			go send(givenUp)
			for range 3 {
				go send(t.Context())
			}
			synctest.Wait()
			wantEqual(t, handled.Load(), maxHandled, "requests that are handled")
			wantEqual(t, len(ends) == 0, c.waits, "they wait")
			giveUp()
			synctest.Wait()
			close(free)
			synctest.Wait()
			good := 0
			for range maxHandled + 4 {
				if <-ends == nil {
					good++
				}
			}
			want := maxHandled
			if c.waits {
				want += 3
			}
			wantEqual(t, good, want, "requests that have a response")
			wantEqual(t, handled.Load(), int64(want), "requests that were handled")
			transport.CloseIdleConnections()
			must(t, s.stop(t.Context(), l))
		}))
	}
}

// TestTheLogOfConnectionsIsBounded: what net/http logs quotes strangers.
func TestTheLogOfConnectionsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newServer(newLogger(&log, "json", slog.LevelInfo), nil, nil)
		long := strings.Repeat("x", 980)
		key := "pet_live_" + strings.Repeat("a", 38)
		for range 300 {
			s.ErrorLog.Print(long + key + long)
		}
		lines := strings.Count(log.String(), "\n")
		if lines != 1 || log.Len() > 1100 || strings.Contains(log.String(), "aaa") {
			t.Errorf("300 lines at once become %s", &log)
		}
		time.Sleep(100 * time.Millisecond)
		s.ErrorLog.Print("hello")
		wantPart(t, log.String(), `"level":"WARN","msg":"hello`, "the log a moment later")
	})
}

// TestAConnectionIsUnusedUntilARequestOrItsEnd: probes of balancers and scans of ports end many
// connections without a request, and those must not stay in memory.
func TestAConnectionIsUnusedUntilARequestOrItsEnd(t *testing.T) {
	for _, next := range []http.ConnState{http.StateActive, http.StateClosed} {
		s := &server{}
		conn, _ := net.Pipe()
		s.note(conn, http.StateNew)
		if _, unused := s.unused.Load(conn); !unused {
			t.Error("a new connection does not count as unused")
		}
		s.note(conn, next)
		if _, unused := s.unused.Load(conn); unused {
			t.Errorf("a connection that is %v counts as unused", next)
		}
	}
}

// How the service stops.

// startSlow sends the head of a POST. finish sends its body and returns the status of the response.
func startSlow(t testing.TB, address, key string) (finish func() int) {
	t.Helper()
	const body = `{"name":"Rex","categoryId":7}`
	host := strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/v1")
	conn, err := net.Dial("tcp", host)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
		"Content-Length: %d\r\n\r\n", key, len(body))
	return func() int {
		_, _ = io.WriteString(conn, body)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		response.Body.Close()
		return response.StatusCode
	}
}

// TestAServerThatCannotServeSaysSo: a failed Serve is not a success.
func TestAServerThatCannotServeSaysSo(t *testing.T) {
	listener := listenAsParent(t)
	must(t, listener.Close())
	withBackground(t, nil, func(b *background) {
		wantTime(b, "serving", 0, time.Second, net.ErrClosed, func() error {
			return b.serve(b.Context(), nil, listener)
		})
	})
}

// TestAStopDropsNoRequestThatIsOnItsWay: for 0.1 s a stop accepts connections as before, for
// another 0.25 s it reads from those that it has, and then it waits for requests that run.
func TestAStopDropsNoRequestThatIsOnItsWay(t *testing.T) {
	wait := func(_ http.ResponseWriter, r *http.Request) {
		d, _ := time.ParseDuration(r.URL.Path[1:])
		time.Sleep(d)
	}
	synctest.Test(t, func(t *testing.T) {
		s, l := startFront(t, nil, wait)
		silent, kept := l.dial(), l.dial()
		kept.send("/")
		time.Sleep(time.Second)
		running, late := l.dial(), l.dial()
		running.send("/3s")
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- s.stop(t.Context(), l) }()

		time.Sleep(99 * time.Millisecond)
		connected := l.dial()
		time.Sleep(2 * time.Millisecond)
		if l.closing.Err() == nil {
			t.Error("it still accepts connections after 0.1 s")
		}
		time.Sleep(248 * time.Millisecond) // 0.349 s since the stop
		for _, c := range []*pipeClient{connected, late, kept} {
			c.send("/1s")
		}
		if !silent.open() {
			t.Error("a connection is closed while a request may be on its way")
		}
		time.Sleep(10 * time.Millisecond)
		if silent.open() {
			t.Error("a connection on which nothing comes holds the stop up")
		}
		must(t, <-ended)
		// Shutdown looks twice a second at last.
		wantWithin(t, time.Since(began), 3*time.Second, 3600*time.Millisecond,
			"the time of the stop, with a request of 3 s,")
		for client, want := range map[*pipeClient]int{
			silent:    0,
			running:   1,
			kept:      2,
			connected: 1,
			late:      1,
		} {
			if got := len(client.responses); got != want || client.open() {
				t.Errorf("a client has got %d responses, want %d, and must be closed", got, want)
			}
		}
	})
}

// TestClientsAreToldOfAStop while there still is somebody who tells them.
func TestClientsAreToldOfAStop(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		l := listenInFakeTime(b)
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.serve(ctx, b.service, l) }()
		kept := l.dial()
		kept.send("/readyz")
		if got := <-kept.responses; got.StatusCode != 200 || got.Close {
			b.Errorf("before the stop it is %s, closing: %v", got.Status, got.Close)
		}
		cancel()
		synctest.Wait()
		for path, c := range map[string]struct {
			client *pipeClient
			status int
		}{"/readyz": {kept, 503}, "/v1/pets": {l.dial(), 401}} {
			c.client.send(path)
			got := <-c.client.responses
			if got.StatusCode != c.status || !got.Close || c.client.open() {
				b.Errorf("%s is %s, closing: %v", path, got.Status, got.Close)
			}
		}
		must(b, <-ended)
		b.wantLog(`"msg":"stopping"}`)
	})
}

// TestAStopCountsItsLastRequests: usage is written for the last time when no request runs any more.
func TestAStopCountsItsLastRequests(t *testing.T) {
	withBackground(t, nil, func(b *background) {
		mustInsertKey(b, b.store, apiKey{})
		countLate := func(http.ResponseWriter, *http.Request) {
			time.Sleep(3 * time.Second)
			b.use()
		}
		l := listenInFakeTime(b)
		ctx, cancel := context.WithCancel(b.Context())
		go func() {
			l.dial().send("/")
			cancel()
		}()
		must(b, b.serve(ctx, http.HandlerFunc(countLate), l))
		b.wantStored(1)
	})
}

func TestAStopEndsForRequestsThatDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		s, l := startFront(t, nil, func(http.ResponseWriter, *http.Request) { <-release })
		c := l.dial()
		c.send("/")
		stopping, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.stop(stopping, l); !errors.Is(err, context.DeadlineExceeded) || !c.open() {
			t.Errorf("it ends with %v", err)
		}
		must(t, s.Close())
		<-c.closed
		close(release)
	})
}

// TestAStopGivesABodyASecond to arrive, a stranger's too, for which net/http waits.
func TestAStopGivesABodyASecond(t *testing.T) {
	pair := testPair(t)
	var stopped time.Time
	reads := func(w http.ResponseWriter, r *http.Request) {
		if _, err := readBody(&response{ResponseWriter: w}, r); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
		if got := time.Since(stopped); got != time.Second {
			t.Errorf("the body is given up %v after the stop", got)
		}
	}
	refuses := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	}
	// The client has sent a head and no whole body.
	http1 := func(l *pipeListener) { fmt.Fprint(l.dial(), postHead+"abc") }
	secure := func(protocol, sent string) func(l *pipeListener) {
		return func(l *pipeListener) {
			conn := tlsClient(l.pipe(), protocol)
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			fmt.Fprint(conn, sent)
		}
	}
	for what, c := range map[string]struct {
		post   func(l *pipeListener)
		handle http.HandlerFunc
		pair   *tlsPair
	}{
		"a keyholder's":             {http1, reads, nil},
		"a stranger's":              {http1, refuses, nil},
		"a keyholder's with TLS":    {secure("http/1.1", postHead), reads, pair},
		"a stranger's with TLS":     {secure("http/1.1", postHead), refuses, pair},
		"a keyholder's with HTTP/2": {secure("h2", http2Begin+http2Post), reads, pair},
		"a stranger's with HTTP/2":  {secure("h2", http2Begin+http2Post), refuses, pair},
	} {
		t.Run(what, func(t *testing.T) {
			withBackground(t, nil, func(b *background) {
				l := listenInFakeTime(b)
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan error)
				go func() {
					front := newServer(testLog, c.pair, c.handle)
					ended <- serveUntil(ctx, front, b.service, l, b.stop)
				}()
				c.post(l)
				time.Sleep(time.Second)
				most := 1700 * time.Millisecond
				if strings.HasSuffix(what, "HTTP/2") { // which waits a second for its peer
					most = 2700 * time.Millisecond
				}
				stopped = time.Now()
				wantTime(b, "the stop", 0, most, nil, func() error {
					cancel()
					return <-ended
				})
				b.wantLog(`"msg":"stopping"}`)
			})
		})
	}
}

// TestAStopWithoutRequestsTakesLessThanOneAndAHalfSeconds, whatever connections there are.
func TestAStopWithoutRequestsTakesLessThanOneAndAHalfSeconds(t *testing.T) {
	pair := testPair(t)
	const usual = 360 * time.Millisecond
	for what, c := range map[string]struct {
		over, sent string // over is a protocol over TLS, or "" for TCP alone
		atMost     time.Duration
	}{
		"one that is closed":                  {"", "", usual},
		"one that sends nothing":              {"", "", usual},
		"one that sends half a head":          {"", getRequest[:20], usual},
		"one that is kept":                    {"", getRequest, usual},
		"one that does not begin TLS":         {"nothing", "", usual},
		"one that sends nothing over TLS":     {"http/1.1", "", usual},
		"one that sends nothing, with HTTP/2": {"h2", "", usual},
		"one that is kept, with HTTP/2":       {"h2", http2Begin + http2Request, 1499e6},
	} {
		t.Run(what, bubble(func(t *testing.T) {
			served := pair
			if c.over == "" {
				served = nil
			}
			s, l := startFront(t, served, http.NotFound)
			conn := l.pipe()
			defer conn.Close()
			if c.over == "http/1.1" || c.over == "h2" {
				secured := tlsClient(conn, c.over)
				must(t, secured.Handshake())
				conn = secured
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			must(t, errorOf(io.WriteString(conn, c.sent)))
			if what == "one that is closed" {
				conn.Close()
			}
			synctest.Wait()
			wantTime(t, "the stop", 0, c.atMost, nil, func() error {
				return s.stop(t.Context(), l)
			})
		}))
	}
}

// TestAStopWaitsForNoPeer that reads nothing: to close its connection takes 5 s, and no other can
// be closed meanwhile, since net/http closes them under one lock.
func TestAStopWaitsForNoPeer(t *testing.T) {
	pair := testPair(t)
	synctest.Test(t, func(t *testing.T) {
		s, l := startFront(t, pair, http.NotFound)
		raw := l.pipe()
		defer raw.Close()
		peer := tlsClient(raw, "http/1.1")
		_, _ = io.WriteString(peer, getRequest)
		response, err := http.ReadResponse(bufio.NewReader(peer), nil)
		must(t, err)
		must(t, response.Body.Close())
		over, cancel := context.WithCancel(t.Context())
		cancel()
		wantTime(t, "the stop", 0, time.Second, context.Canceled, func() error {
			return s.stop(over, l)
		})
	})
}

// unreadLog is a stderr that takes lines only once it is read.
type unreadLog struct {
	logBuffer
	read chan bool // closed then
}

func (l *unreadLog) Write(p []byte) (int, error) {
	<-l.read
	return l.logBuffer.Write(p)
}

// TestAServiceWhoseLogNobodyReadsGoesOnAndStops, though a refusal is logged meanwhile, and its stop
// is.
func TestAServiceWhoseLogNobodyReadsGoesOnAndStops(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	s := startServer(t, nil, "-db", databasePath(t))
	s.log.gate.Lock() // for good
	for range addressQuota {
		send(t, "GET", s.address+"/pets", "", "")
	}
	for range 2 {
		response, body := s.post(rexBody[1:])
		wantEqual(t, response.StatusCode, 201, "the status of ", body)
	}
	s.stop()
}

// TestAStartWhoseLogNobodyReadsGoesOn: it makes the first key, though a variable is warned of.
func TestAStartWhoseLogNobodyReadsGoesOn(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	shown := make(chan string, 1)
	stdout := writerFunc(func(p []byte) (int, error) {
		shown <- string(p)
		return len(p), nil
	})
	unread := writerFunc(func([]byte) (int, error) { select {} })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		args := []string{"-addr", "127.0.0.1:0", "-db", databasePath(t)}
		ended <- run(ctx, args, []string{"PETSTORE_TYPO=1"}, nil, stdout, unread)
	}()
	printed := <-shown
	wantPart(t, printed, "pet_live_", "what the first start prints")
	address := regexp.MustCompile(`http://\S+/v1`).FindString(printed)
	response, _ := send(t, "GET", address+"/pets", "", "") // once it serves
	wantEqual(t, response.StatusCode, 401, "the status without a key")
	stop()
	must(t, <-ended)
}

// TestACommandWhoseStderrNobodyReadsEndsAtASignal, when it says what it did.
func TestACommandWhoseStderrNobodyReadsEndsAtASignal(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	keys := newKeys(t)
	keys.mint("create")
	for _, line := range []string{"key set -name other 1", "key create", "pet import -"} {
		arrived := make(chan bool, 1)
		unread := writerFunc(func([]byte) (int, error) {
			arrived <- true
			select {}
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, strings.Fields(line), []string{"PETSTORE_DB=" + keys.db},
				strings.NewReader(rexBody[1:]), io.Discard, unread)
		}()
		<-arrived
		stop()
		select {
		case <-ended: //nolint:errcheck // that it ends is all that counts
		case <-time.After(longWait):
			t.Errorf("%s waits for a reader of stderr", line)
		}
	}
}

func TestSIGTERMIsAGracefulStop(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	// Under nohup(1) the tests ignore SIGHUP, and so would their children, unless it is caught.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			p := startProcess(t)
			finish := startSlow(t, p.address, p.key)
			must(t, p.Process.Signal(signal))
			p.await("stopping")
			wantEqual(t, finish(), 201, "the status of the running request")
			for p.log.Scan() {
				t.Errorf("after stopping the log says %s", p.log.Bytes())
			}
			must(t, p.Wait())
		})
	}
}

// TestAnIgnoredSIGHUPStaysIgnored: nohup(1) starts programs so.
func TestAnIgnoredSIGHUPStaysIgnored(t *testing.T) {
	takesSeconds(t)
	cmd := program(t, "-db", madeDatabase(t))
	nohup := []string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`, cmd.Path}
	cmd.Args = append(nohup, cmd.Args[1:]...)
	cmd.Path, cmd.Err = exec.LookPath("sh")
	p := &testProcess{t: t, Cmd: cmd}
	p.start()
	must(t, p.Process.Signal(syscall.SIGHUP))
	readyz := strings.TrimSuffix(p.address, "/v1") + "/readyz"
	for range 100 { // a stop would begin meanwhile
		response, _ := send(t, "GET", readyz, "", "")
		if response.StatusCode != 200 {
			t.Fatalf("it responds with %s", response.Status)
		}
	}
	must(t, p.Process.Signal(syscall.SIGTERM))
	p.await("stopping")
	must(t, p.Wait())
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	p := startProcess(t)
	_ = startSlow(t, p.address, p.key) // holds the graceful stop up
	must(t, p.Process.Signal(syscall.SIGTERM))
	p.await("stopping")
	go func() {
		for p.Process.Signal(syscall.SIGTERM) == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	err := p.Wait()
	if status := p.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		t.Errorf("it ends with %v", err) // as a graceful stop does after 10 seconds
	}
}
