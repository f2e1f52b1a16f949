package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// balancerConfig is what HAProxy gets. It repeats on another service what it
// could not hand over, and nothing else. Its workers hand listening sockets over, and let
// idle connections have a last request, so that a reload fails none.
const balancerConfig = `global
	stats socket %[1]s/haproxy.sock mode 600 level admin expose-fd listeners
defaults
	mode http
	option idle-close-on-response
	option redispatch 1
	option httpchk GET /readyz
	timeout connect 1s
	timeout client 60s
	timeout server 20s
	timeout check 2s
	default-server check inter 500ms fall 2 rise 1
frontend hashing
	bind %[2]s
	default_backend hashing
backend hashing
	balance hdr(Authorization)
	hash-type consistent
%[4]sfrontend roundrobin
	bind %[3]s
	default_backend roundrobin
backend roundrobin
	balance roundrobin
%[4]s`

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
	for i, s := range services {
		fmt.Fprintf(&servers, "\tserver service%d %s\n", i, strings.TrimPrefix(s.address(), "http://"))
	}
	config := filepath.Join(folder, "haproxy.cfg")
	text := fmt.Sprintf(balancerConfig, folder, hashing, roundRobin, servers.String())
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
