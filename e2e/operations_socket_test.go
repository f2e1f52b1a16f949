package e2e

// Proven here alone: on a socket that its parent holds, twenty upgrades refuse none of 80 clients.

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// inheriting is a command that gets the socket as systemd hands one over. A shell
// tells the process its id, which is that of the shell before.
func inheriting(cmd *exec.Cmd, socket *os.File) *exec.Cmd {
	shell := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path},
		cmd.Args[1:]...)...)
	shell.Env = append(cmd.Env, "LISTEN_FDS=1")
	shell.ExtraFiles = []*os.File{socket} // from 3 on
	return shell
}

// customer sends requests for as long as the service is upgraded, and counts the responses.
type customer struct {
	client    *http.Client
	responses atomic.Int64
	created   map[string]int64 // ids by name
}

// order sends a GET and a POST in turn until done. A request without a
// response, or with a wrong one, is an error.
func (c *customer) order(t *testing.T, s *server, name string, done <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		default:
		}
		method, body, want, animal := "GET", "", http.StatusOK, ""
		if n%2 == 1 {
			animal = fmt.Sprintf("%s, animal %d", name, n)
			method, body, want = "POST", animalJSON(animal), http.StatusCreated
		}
		got, err := s.send(context.Background(), c.client, method, "/pets", body)
		if err != nil || got.status != want {
			t.Errorf("%s, request %d: %v, %v", name, n, got, err)
			return
		}
		if animal != "" {
			c.created[animal] = decode[pet](t, got.body).ID
		}
		c.responses.Add(1)
	}
}

// TestAnUpgradeRefusesNobody starts the service anew again and again on a socket
// that this process, its parent, holds. Of 64 clients that connect for each
// request, and 16 that keep their connections, nobody is refused, every request
// gets its response, and what was created is there.
func TestAnUpgradeRefusesNobody(t *testing.T) {
	parent, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer parent.Close()
	socket, err := parent.(*net.TCPListener).File()
	noError(t, err)
	defer socket.Close()
	s := start(t)
	s.stop()
	s.socket = socket
	s.run()
	if want := "http://" + parent.Addr().String() + "/v1"; s.url != want {
		t.Fatalf("it serves %s, want the socket of its parent: %s", s.url, want)
	}

	var clients [64 + 16]*customer
	done := make(chan struct{})
	var all sync.WaitGroup
	leave := sync.OnceFunc(func() { close(done); all.Wait() })
	defer leave()
	for i := range clients {
		// Each comes from an address of its own, which has ports enough.
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}}
		transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: i < 64}
		defer transport.CloseIdleConnections()
		clients[i] = &customer{client: &http.Client{Transport: transport,
			Timeout: 30 * time.Second}, created: map[string]int64{}}
		fixed := &server{t: t, url: s.url, key: s.key}
		all.Go(func() { clients[i].order(t, fixed, fmt.Sprint("client ", i+1), done) })
	}
	// Each client gets two more responses, so that one request at least is sent to the process that
	// now runs.
	served := func() {
		t.Helper()
		var before [64 + 16]int64
		for i, c := range clients {
			before[i] = c.responses.Load()
		}
		eventually(t, 30*time.Second, func() error {
			for i, c := range clients {
				if c.responses.Load() < before[i]+2 && !t.Failed() {
					return fmt.Errorf("client %d waits for its response", i+1)
				}
			}
			return nil
		})
	}
	for range soak(20) {
		served()
		if t.Failed() {
			return
		}
		s.stop()
		s.run()
	}
	served()
	leave()

	responses, created := int64(0), map[string]int64{}
	for _, c := range clients {
		responses += c.responses.Load()
		maps.Copy(created, c.created)
	}
	checkStored(t, s.everyAnimal(t), created, func(string, int64) bool { return false })
	t.Logf("%d upgrades under %d responses", soak(20), responses)
}
