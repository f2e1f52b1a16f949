package main

// How the service stops.

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// startSlow starts a POST and returns when the server waits for its body;
// finish sends that and returns the status of the response.
func startSlow(t testing.TB, address, key string) (finish func() int) {
	t.Helper()
	const text = `{"name":"Rex","categoryId":7}`
	reading := make(chan bool, 1)
	trace := &httptrace.ClientTrace{Got100Continue: func() { reading <- true }}
	ctx := httptrace.WithClientTrace(t.Context(), trace)
	body, bodyWriter := io.Pipe()
	r, err := http.NewRequestWithContext(ctx, "POST", address+"/pets", body)
	must(t, err)
	r.ContentLength = int64(len(text))
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Expect", "100-continue") // the server says so when the operation reads the body
	status := make(chan int, 1)
	go func() {
		defer close(status) // 0 if there is no response
		if response, err := testClient.Do(r); err == nil {
			response.Body.Close()
			status <- response.StatusCode
		}
	}()
	select {
	case <-reading:
	case <-time.After(longWait):
		t.Fatal("the server does not ask for the body")
	}
	return func() int {
		_, _ = io.WriteString(bodyWriter, text)
		bodyWriter.Close()
		return <-status
	}
}

// TestAServerThatCannotServeSaysSo: a failed Serve is not a success.
func TestAServerThatCannotServeSaysSo(t *testing.T) {
	listener := listenAsParent(t)
	must(t, listener.Close())
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		front := newServer(testLog, nil, nil)
		err := serveUntil(t.Context(), front, b.service, listener, b.stop)
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("it ends with %v", err)
		}
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
		if took := time.Since(began); took < 3*time.Second || took > 3600*time.Millisecond {
			t.Errorf("the stop takes %v, and the longest request 3 s", took)
		}
		for _, c := range []struct {
			what      string
			client    *pipeClient
			responses int
		}{
			{"one that is silent", silent, 0},
			{"one with a request that runs", running, 1},
			{"one that was kept", kept, 2},
			{"one that connects during the stop", connected, 1},
			{"one that had sent nothing before", late, 1},
		} {
			if got := len(c.client.responses); got != c.responses || c.client.open() {
				t.Errorf("%s has got %d responses, want %d, and must be closed",
					c.what, got, c.responses)
			}
		}
	})
}

// TestClientsAreToldOfAStop while there still is somebody who tells them.
func TestClientsAreToldOfAStop(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		l := listenInFakeTime(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- serveUntil(ctx, newServer(testLog, nil, b.service), b.service, l, b.stop)
		}()
		kept := l.dial()
		kept.send("/readyz")
		if got := <-kept.responses; got.StatusCode != 200 || got.Close {
			t.Errorf("before the stop it is %s, closing: %v", got.Status, got.Close)
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
				t.Errorf("%s is %s, closing: %v", path, got.Status, got.Close)
			}
		}
		must(t, <-ended)
		b.wantLog(`"msg":"stopping"}`)
	})
}

// TestAStopCountsItsLastRequests: usage is written for the last time when no request runs any more.
func TestAStopCountsItsLastRequests(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		mustInsertKey(t, b.store, apiKey{})
		countLate := func(http.ResponseWriter, *http.Request) {
			time.Sleep(3 * time.Second)
			b.use()
		}
		l := listenInFakeTime(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			l.dial().send("/")
			cancel()
		}()
		front := newServer(testLog, nil, http.HandlerFunc(countLate))
		must(t, serveUntil(ctx, front, b.service, l, b.stop))
		b.wantStored(1)
	})
}

func TestAStopEndsForRequestsThatDoNot(t *testing.T) {
	for7Hours := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(7 * time.Hour):
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s, l := startFront(t, nil, for7Hours)
		c := l.dial()
		c.send("/")
		stopping, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.stop(stopping, l); !errors.Is(err, context.DeadlineExceeded) || !c.open() {
			t.Errorf("it ends with %v", err)
		}
		must(t, s.Close())
		<-c.closed
	})
}

// TestAStopWithoutRequestsTakesLessThanOneAndAHalfSeconds, whatever connections there are.
func TestAStopWithoutRequestsTakesLessThanOneAndAHalfSeconds(t *testing.T) {
	pair := testPair(t)
	const usual = 360 * time.Millisecond
	read := func(conn io.Reader) { go func() { _, _ = io.Copy(io.Discard, conn) }() }
	secure := func(conn net.Conn, protocol string) net.Conn {
		c := tlsClient(conn, protocol)
		must(t, c.Handshake())
		read(c)
		return c
	}
	plain := func(sent string) func(*testing.T, net.Conn) {
		return func(t *testing.T, conn net.Conn) {
			read(conn)
			_, err := io.WriteString(conn, sent)
			must(t, err)
		}
	}
	for what, c := range map[string]struct {
		pair    *tlsPair
		connect func(t *testing.T, conn net.Conn)
		atMost  time.Duration
	}{
		"one that is closed": {nil, func(_ *testing.T, conn net.Conn) {
			conn.Close()
		}, usual},
		"one that sends nothing":      {nil, plain(""), usual},
		"one that sends half a head":  {nil, plain(getRequest[:20]), usual},
		"one that is kept":            {nil, plain(getRequest), usual},
		"one that does not begin TLS": {pair, plain(""), usual},
		"one that sends nothing over TLS": {pair, func(_ *testing.T, conn net.Conn) {
			secure(conn, "http/1.1")
		}, usual},
		"one that sends nothing, with HTTP/2": {pair, func(_ *testing.T, conn net.Conn) {
			secure(conn, "h2")
		}, usual},
		"one that is kept, with HTTP/2": {pair, func(_ *testing.T, conn net.Conn) {
			_, _ = io.WriteString(secure(conn, "h2"), http2Begin+http2Request)
		}, 1499 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := startFront(t, c.pair, http.NotFound)
				conn := l.pipe()
				defer conn.Close()
				c.connect(t, conn)
				synctest.Wait()
				began := time.Now()
				must(t, s.stop(t.Context(), l))
				if took := time.Since(began); took > c.atMost {
					t.Errorf("it takes %v, want %v at most", took, c.atMost)
				}
			})
		})
	}
}

// TestAStopWaitsForNoPeer that reads nothing: to close its connection takes 5 s, and no other can be
// closed meanwhile, since net/http closes them under one lock.
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
		began := time.Now()
		err = s.stop(over, l)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the stop says %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop takes %v", took)
		}
	})
}

func TestSIGTERMIsAGracefulStop(t *testing.T) {
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
			if status := finish(); status != 201 {
				t.Errorf("the running request ends with status %d", status)
			}
			for p.log.Scan() {
				t.Errorf("after stopping the log says %s", p.log.Bytes())
			}
			must(t, p.Wait())
		})
	}
}

// TestAnIgnoredSIGHUPStaysIgnored: nohup(1) starts programs so.
func TestAnIgnoredSIGHUPStaysIgnored(t *testing.T) {
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
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	deadline := time.After(8 * time.Second) // less than a graceful stop waits
	again := time.Tick(10 * time.Millisecond)
	for {
		select {
		case err := <-ended:
			if status := p.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
				t.Errorf("it ends with %v", err)
			}
			return
		case <-again:
			_ = p.Process.Signal(syscall.SIGTERM)
		case <-deadline:
			t.Fatal("a second signal does not end the server")
		}
	}
}
