package e2e

// How tests run commands. Proven here alone: those that write find a gap beside a service that
// writes all the time to a slow disk.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is a command of the program that runs, and what became of it.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, log logBuffer
	ended    chan struct{} // closed when it has ended
}

// launch starts a command. What still runs when the test ends is killed.
func launch(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &p.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.log
	}
	noError(t, cmd.Start())
	go func() {
		_ = cmd.Wait() // its status is looked at by whoever waits
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// within reports whether the command ends in time.
func (p *process) within(patience time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(patience):
		return false
	}
}

// status waits for the end of the command and returns its exit status; what is
// killed, or had to be, has -1.
func (p *process) status() int {
	p.t.Helper()
	if !p.within(longEnough) {
		p.t.Errorf("%s runs on after %v", p, longEnough)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return p.cmd.ProcessState.ExitCode()
}

// String is the command line, without the path of the program.
func (p *process) String() string {
	args := p.cmd.Args
	return "petstore " + strings.Join(args[slices.Index(args, binary)+1:], " ")
}

// told is what the command did and said, for a failure.
func (p *process) told() string {
	return fmt.Sprintf("%s: %v, stdout %q, stderr %q", p, p.cmd.ProcessState, tail(p.out.String()),
		tail(p.log.String()))
}

// succeeds wants a command to end well, and returns what it did.
func succeeds(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := launch(t, cmd)
	if p.status() != 0 {
		t.Fatalf("%s; want success", p.told())
	}
	return p
}

// fails wants a command to end with status 1, nothing on stdout, and one line
// on stderr with some texts in it.
func fails(t *testing.T, cmd *exec.Cmd, texts ...string) {
	t.Helper()
	p := launch(t, cmd)
	status, line := p.status(), strings.TrimSuffix(p.log.String(), "\n")
	silent := slices.ContainsFunc(texts, func(text string) bool {
		return !strings.Contains(line,
			text)
	})
	if status != 1 || p.out.String() != "" || line == "" || strings.Contains(line, "\n") || silent {
		t.Errorf("%s; want status 1 and one line with %q", p.told(), texts)
	}
}

// runSlowly is run with a disk that takes 10 ms more for each sync, as one does that turns or lies
// behind a network. strace -D stands aside, so that the process is the program's own, with its
// signals and its exit status; with --seccomp-bpf it costs the other calls no time.
func (s *server) runSlowly() {
	s.t.Helper()
	s.serves = filepath.Join(s.t.TempDir(), "petstore-on-a-slow-disk")
	slow := strace(exec.Command(binary), "/dev/null", "-D", "--seccomp-bpf",
		"-e", "trace="+syncCalls, "-e", "inject="+syncCalls+":delay_exit=10000")
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", strings.Join(slow.Args, "' '"))
	noError(s.t, os.WriteFile(s.serves, []byte(script), 0o700))
	s.run()
}

// keepWriting has some clients add pets, each as soon as its last one was stored: four leave the
// write lock almost without a gap. They tell how many there are when they are stopped.
func keepWriting(t *testing.T, s *server, writers int) (stop func() (created int64)) {
	t.Helper()
	l := startLoad(s, writers)
	stop = sync.OnceValue(func() int64 {
		l.end()
		if failed := l.refused + l.lost; failed > 0 {
			t.Errorf("%d pets are not added beside commands, the last for %v", failed, l.reason)
		}
		return int64(len(l.answered))
	})
	t.Cleanup(func() { stop() })
	return stop
}

// TestCommandsThatWriteFindAGapBesideABusyService changes keys while the
// service writes to a slow disk. A command needs the lock for a moment only,
// and a few seconds are ample for it to find one that is free.
func TestCommandsThatWriteFindAGapBesideABusyService(t *testing.T) {
	const rounds, ample = 3, 3 * time.Second
	s := start(t)
	var commands [][]string
	for range rounds {
		banned := s.keyOf("3")
		s.ban(t, banned)
		commands = append(commands, []string{"create"}, []string{"unban", banned.id},
			[]string{"revoke", s.keyOf("3").id})
	}
	s.stop()
	s.runSlowly()
	defer keepWriting(t, s, 4)()
	// more would only take time
	for starved, command := 0, 0; command < len(commands) && starved < 2; command++ {
		began := time.Now()
		p := launch(t, program(append([]string{"key", commands[command][0], "-db", s.db},
			commands[command][1:]...)...))
		if !p.within(ample) || p.status() != 0 {
			starved++
			t.Errorf("%s does not succeed within %v: %s", p, ample, p.log.String())
		}
		t.Logf("key %s takes %v", commands[command][0], time.Since(began).Round(time.Millisecond))
	}
}
