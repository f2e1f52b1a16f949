package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

// What balancerConfig puts in the place of the documented settings.
var balancerChanges = []struct {
	documented *regexp.Regexp
	here       string // may name the arguments of balancerConfig
}{
	// Workers hand listening sockets over, and let idle connections have a last
	// request, so that a reload fails none.
	{regexp.MustCompile(`(?s)^.*\ndefaults\n`), "global\n\tstats socket FOLDER/haproxy.sock mode 600 level admin expose-fd listeners\n" +
		"defaults\n\toption idle-close-on-response\n"},
	{regexp.MustCompile(`\n\tlog global\n\toption httplog\n`), "\n"},
	{regexp.MustCompile(`bind :443 ssl .*`), "bind HASHING"},
	{regexp.MustCompile(`(?m)^.* set-header X-Forwarded-For .*\n`), ""}, // tests say who calls
	{regexp.MustCompile(` ssl verify required ca-file \S+`), ""},
	{regexp.MustCompile(`(?m)(^\tserver .*\n)+`), "SERVERS"},
	{regexp.MustCompile(`\z`), "\nfrontend roundrobin\n\tbind ROUNDROBIN\n\tdefault_backend roundrobin\n" +
		"backend roundrobin\n\tbalance roundrobin\n\toption httpchk GET /readyz\n\tdefault-server check inter 1s fall 2 rise 2\nSERVERS"},
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
	return strings.NewReplacer("FOLDER", folder, "HASHING", hashing, "ROUNDROBIN", roundRobin, "SERVERS", servers).Replace(config)
}

// startBalancer starts HAProxy, and returns when it takes connections. It believes all
// services ready until its checks tell otherwise.
func startBalancer(t *testing.T, services []*server) *balancer {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("install Debian's haproxy: %v", err)
	}
	folder := t.TempDir()
	hashing, roundRobin := ownAddress(t), ownAddress(t)
	var servers strings.Builder
	fmt.Fprintf(&servers, "\thttp-response set-header %s %%s\n", answeredBy)
	for i, s := range services {
		fmt.Fprintf(&servers, "\tserver service%d %s\n", i, strings.TrimPrefix(s.address(), "http://"))
	}
	config := filepath.Join(folder, "haproxy.cfg")
	text := balancerConfig(t, folder, hashing, roundRobin, servers.String())
	noError(t, os.WriteFile(config, []byte(text), 0o600))
	b := &balancer{t: t, hashing: "http://" + hashing + "/v1", roundRobin: "http://" + roundRobin + "/v1",
		cmd: exec.Command(program, "-W", "-f", config), log: &logBuffer{}}
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
