// Package histories records what callers with limited keys ask of the service and what it answers,
// and replays that in a model. What they are told of pets is checked by the tests histories_ of
// e2e, with the package pets.
//
//	cd e2e && go test -v ./histories                    once
//	cd e2e && SOAK=60 go test -timeout 2h ./histories   for an hour
package histories

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// service is a petstore on a file of its own, which may be killed and started again.
type service struct {
	t           *testing.T
	program, db string
	url         atomic.Pointer[string] // up to and including /v1
	cmd         *exec.Cmd
	log         io.Writer // gets what is logged after the start
}

// newService is a service on a new database that does not run yet.
func newService(t *testing.T, program string) *service {
	t.Helper()
	db := filepath.Join(t.TempDir(), "petstore.db")
	s := &service{t: t, program: program, db: db, log: io.Discard}
	t.Cleanup(func() { s.kill() })
	return s
}

// command runs a command on the database and returns its stdout.
func (s *service) command(name, action string, args ...string) (stdout string, err error) {
	args = append([]string{name, action, "-db", s.db}, args...)
	cmd := exec.Command(s.program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("petstore %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), nil
}

var readyLine = regexp.MustCompile(`"ready".*"address":"([^"]*)"`)

// run starts the service and returns when it is ready.
func (s *service) run(flags ...string) {
	s.t.Helper()
	flags = append(flags, "-addr", "127.0.0.1:0", "-db", s.db, "-log", "json")
	s.cmd = exec.Command(s.program, flags...)
	stderr, err := s.cmd.StderrPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if match := readyLine.FindStringSubmatch(lines.Text()); match != nil {
			s.url.Store(&match[1])
			go func() { _, _ = io.Copy(s.log, stderr) }()
			return
		}
	}
	s.t.Fatal("the service does not start")
}

// kill ends the service without a warning.
func (s *service) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // says that it was killed
}

// refusedConnection reports whether a request surely did not reach the service.
func refusedConnection(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}
