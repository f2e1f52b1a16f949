package e2e

// HAProxy in front of services, for other tests too. Proven here alone: as it is documented, it
// asks no service that has the certificate of another, and logs no path.

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// balancer is Debian's HAProxy in front of services.
type balancer struct {
	t *testing.T

	// URLs up to and including /v1: all requests with a key go to the same service, or to
	// each service in turn.
	hashing, roundRobin string

	cmd *exec.Cmd
	log *logBuffer
}

// answeredBy is a header with the name of the service that a balancer has asked: service0,
// service1, and so on.
const answeredBy = "X-Answered-By"

// documentedConfig is where operators copy HAProxy's configuration from.
const documentedConfig = "../docs/deploy/haproxy.cfg"

var documentedBinds = regexp.MustCompile(`bind :443 ssl .*\n\tbind :::443 v6only .*`)

// What balancerConfig puts in the place of the documented settings.
var balancerChanges = []struct {
	documented *regexp.Regexp
	here       string // may name the arguments of balancerConfig
}{
	// Workers hand listening sockets over, and let idle connections have a last
	// request, so that a reload fails none.
	{regexp.MustCompile(`(?s)^.*\ndefaults\n`),
		"global\n\tstats socket FOLDER/haproxy.sock mode 600 level admin expose-fd listeners\n" +
			"defaults\n\toption idle-close-on-response\n"},
	{regexp.MustCompile(`\n\tlog global\n\tlog-format .*\n`), "\n"},
	{documentedBinds, "bind HASHING"},
	{regexp.MustCompile(`(?m)^.* set-header X-Forwarded-For .*\n`), ""}, // tests say who calls
	{regexp.MustCompile(` ssl verify required ca-file \S+`), ""},
	{regexp.MustCompile(`(?m)(^\tserver .*\n)+`), "SERVERS"},
	{regexp.MustCompile(`\z`),
		"\nfrontend roundrobin\n\tbind ROUNDROBIN\n\tdefault_backend roundrobin\n" +
			"backend roundrobin\n\tbalance roundrobin\n\toption httpchk GET " +
			"/readyz\n\tdefault-server check inter 1s fall 2 rise 2\nSERVERS"},
}

// balancerConfig is the documented configuration of HAProxy for other services, without
// TLS, and with a second frontend that goes to each service in turn.
func balancerConfig(t *testing.T, folder, hashing, roundRobin, servers string) string {
	t.Helper()
	text, err := os.ReadFile(documentedConfig)
	noError(t, err)
	config := string(text)
	for _, change := range balancerChanges {
		if !change.documented.MatchString(config) {
			t.Errorf("%s has nothing like %s", documentedConfig, change.documented)
		}
		config = change.documented.ReplaceAllLiteralString(config, change.here)
	}
	return strings.NewReplacer("FOLDER", folder, "HASHING", hashing, "ROUNDROBIN", roundRobin,
		"SERVERS", servers).Replace(config)
}

// startBalancer starts HAProxy, and returns when it takes connections. It believes all
// services ready until its checks tell otherwise.
func startBalancer(t *testing.T, services []*server) *balancer {
	t.Helper()
	folder := t.TempDir()
	hashing, roundRobin := ownAddress(t), ownAddress(t)
	var servers strings.Builder
	fmt.Fprintf(&servers, "\thttp-response set-header %s %%s\n", answeredBy)
	for i, s := range services {
		fmt.Fprintf(&servers, "\tserver service%d %s\n", i, strings.TrimPrefix(s.address(),
			"http://"))
	}
	b := runBalancer(t, folder, balancerConfig(t, folder, hashing, roundRobin, servers.String()))
	b.hashing, b.roundRobin = "http://"+hashing+"/v1", "http://"+roundRobin+"/v1"
	return b
}

func runBalancer(t *testing.T, folder, text string) *balancer {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("install Debian's haproxy: %v", err)
	}
	config := filepath.Join(folder, "haproxy.cfg")
	noError(t, os.WriteFile(config, []byte(text), 0o600))
	b := &balancer{t: t, cmd: exec.Command(program, "-W", "-f", config), log: &logBuffer{}}
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	noError(t, b.cmd.Start())
	t.Cleanup(func() {
		_ = b.cmd.Process.Signal(syscall.SIGTERM) // it takes its workers along
		_ = b.cmd.Wait()                          // tells of the signal
		if t.Failed() {
			t.Logf("HAProxy:\n%s", tail(b.log.String()))
		}
	})
	b.awaitWorker(1)
	return b
}

// reload has HAProxy read its configuration again, as systemctl reload does: new
// processes take over, and the old ones end with their last connection.
func (b *balancer) reload() {
	b.t.Helper()
	before := b.workers()
	noError(b.t, b.cmd.Process.Signal(syscall.SIGUSR2))
	b.awaitWorker(before + 1)
}

// workers is how many have taken over so far.
func (b *balancer) workers() int { return strings.Count(b.log.String(), "Loading success") }

func (b *balancer) awaitWorker(n int) {
	b.t.Helper()
	eventually(b.t, 20*time.Second, func() error {
		if b.workers() < n {
			return fmt.Errorf("HAProxy has not taken over:\n%s", b.log)
		}
		return nil
	})
}

// TestTheBalancerKnowsItsServices puts a server with another machine's certificate in the place of
// the second service. HAProxy sends it no request, and logs no path or query of any.
func TestTheBalancerKnowsItsServices(t *testing.T) {
	t.Parallel()
	folder, front := t.TempDir(), ownAddress(t)
	script, err := filepath.Abs("../docs/deploy/cluster.sh")
	noError(t, err)
	makes := exec.Command("sh", script, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	makes.Dir = folder
	runs(t, makes)
	var requests [3]atomic.Int64
	config := strings.ReplaceAll(readFile(t, documentedConfig), "10.0.0.", "127.0.0.")
	for i, certified := range []string{"127.0.0.1", "127.0.0.3", "127.0.0.3"} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter,
			r *http.Request) {
			if r.URL.Path != "/readyz" {
				requests[i].Add(1)
			}
		}))
		host := fmt.Sprint("127.0.0.", i+1)
		node := filepath.Join(folder, "cluster", certified, "node.")
		pair, err := tls.LoadX509KeyPair(node+"crt", node+"key")
		noError(t, err)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		noError(t, s.Listener.Close())
		s.Listener, err = net.Listen("tcp", host+":0")
		noError(t, err)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		config = strings.ReplaceAll(config, host+":8080", s.Listener.Addr().String())
	}
	config = "global\n" + config[strings.Index(config, "\ndefaults\n"):]
	config = documentedBinds.ReplaceAllLiteralString(config, "bind "+front)
	config = strings.NewReplacer("log global", "log stdout format raw local0",
		"/etc/rqlite", filepath.Join(folder, "cluster")).Replace(config)
	b := runBalancer(t, folder, config)
	for i := range 60 { // each a caller of its own
		r, err := call("http://"+front, fmt.Sprint("key ", i), "GET", "/v1/pets?limit=7", "", "")
		if err != nil || r.status != http.StatusOK {
			t.Errorf("a request gets %v, %v", r, err)
		}
	}
	if served := requests[1].Load(); served != 0 {
		t.Errorf("a server with the certificate of another has got %d requests", served)
	}
	if served := requests[0].Load() + requests[2].Load(); served != 60 {
		t.Errorf("the others have got %d requests, want 60", served)
	}
	if log := b.log.String(); !strings.Contains(log, "/petstore1 ") ||
		strings.Contains(log, "pets?") ||
		strings.Contains(log, "/v1") {
		t.Errorf("the log is\n%s", tail(log))
	}
}
