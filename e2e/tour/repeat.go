package tour

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// checkRepeat runs the client of stop 6 against the service, on a network that loses the first
// response to each of its creates, and counts the pets that are stored and the responses that have
// reached the client.
func checkRepeat(_ Exercise, root string, out io.Writer) error {
	dir, err := os.MkdirTemp("", "repeat-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	service, key, err := startService(ctx, root, dir)
	if err != nil {
		return err
	}
	network, answered := losesResponses(service)
	defer network.Close()
	client := exec.CommandContext(ctx, "go", "run", "./tour/stop6/client", network.URL+"/v1",
		key) //nolint:gosec // of the tour
	client.Dir, client.Stdout, client.Stderr = filepath.Join(root, "e2e"), out, out
	if err := client.Run(); err != nil {
		return fmt.Errorf("the client has failed: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		service.String()+"/v1/pets?limit=100", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var pets []struct{ Name string }
	if err := json.NewDecoder(response.Body).Decode(&pets); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "pets added: 2 - pets stored: %d\n", len(pets))
	if len(pets) != 2 {
		return fmt.Errorf("pets stored: %d, in place of 2", len(pets))
	}
	if n := answered.Load(); n < 2 {
		return fmt.Errorf("the client has given up: responses that have reached it: %d, in place "+
			"of 2", n)
	}
	return nil
}

// startService builds the service, starts it on a new database until ctx ends, and returns its
// address and a key.
func startService(ctx context.Context, root, dir string) (address *url.URL, key string, err error) {
	program, db := filepath.Join(dir, "petstore"), filepath.Join(dir, "petstore.db")
	build := exec.CommandContext(ctx, "go", "build", "-o", program,
		".") //nolint:gosec // the service
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("the service cannot be built: %w\n%s", err, text)
	}
	made, err := exec.CommandContext(ctx, program, "key", "create", "-db",
		db).Output() //nolint:gosec // the service
	if err != nil {
		return nil, "", fmt.Errorf("no key can be made: %w", err)
	}
	serve := exec.CommandContext(ctx, program, "-addr", "127.0.0.1:0", "-db", db, "-log",
		"json") //nolint:gosec // the service
	serve.Cancel = func() error { return serve.Process.Signal(os.Interrupt) }
	log, err := serve.StderrPipe()
	if err != nil {
		return nil, "", err
	}
	if err := serve.Start(); err != nil {
		return nil, "", err
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct{ Msg, Listening string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
			go func() { _, _ = io.Copy(io.Discard, log); _ = serve.Wait() }()
			return &url.URL{Scheme: "http", Host: line.Listening}, strings.TrimSpace(string(made)),
				nil
		}
	}
	return nil, "", fmt.Errorf("the service does not start: %w", serve.Wait())
}

// losesResponses is a network between a client and the service. Every second response to a POST is
// lost, the first one among them, after the service has done what was asked. The others are counted
// in answered.
func losesResponses(service *url.URL) (network *httptest.Server, answered *atomic.Int64) {
	proxy := httputil.NewSingleHostReverseProxy(service)
	var creates atomic.Int64
	answered = new(atomic.Int64)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method != http.MethodPost {
			return nil
		}
		if creates.Add(1)%2 == 1 {
			panic(http.ErrAbortHandler)
		}
		answered.Add(1)
		return nil
	}
	return httptest.NewServer(proxy), answered
}
