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

// checkRepeat runs the client twice against the service, on a network that loses the first
// response to each of its creates. It counts the pets that are stored, and the responses that have
// reached the client.
func checkRepeat(e Exercise, root string) error {
	dir, err := os.MkdirTemp("", "repeat-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	service, key, err := startService(ctx, root, dir)
	if err != nil {
		return err
	}
	network, answered := losesResponses(service)
	defer network.Close()
	for run, hint := range []string{
		"What makes two requests one create, and two pets two?",
		"What would a second run of the client have to do otherwise than the first?",
	} {
		client := exec.CommandContext(ctx, "go", "run", "./tour/"+e.Name, network.URL+"/v1",
			key) //nolint:gosec // of the tour
		client.Dir = filepath.Join(root, "e2e")
		out, err := client.CombinedOutput()
		if err != nil {
			return fmt.Errorf("the client has failed: %w\n%s", err, out)
		}
		stored, err := countPets(ctx, service, key)
		if err != nil {
			return err
		}
		want := 2 * (run + 1)
		if n := answered.Load(); n < int64(want) {
			return fmt.Errorf("after run %d, %d responses have reached the client, want %d: "+
				"it has given up. What does it know of its pet then?", run+1, n, want)
		}
		if stored != want {
			return fmt.Errorf("after run %d of the client, %d pets are stored, want %d. %s\n"+
				"The client prints:\n%s", run+1, stored, want, hint, out)
		}
	}
	return nil
}

// countPets is how many pets a service has, up to 100.
func countPets(ctx context.Context, service *url.URL, key string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		service.String()+"/v1/pets?limit=100", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var pets []struct{ Name string }
	err = json.NewDecoder(response.Body).Decode(&pets)
	return len(pets), err
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
