package e2e

// Proven here alone: real proxies that keep idle connections for less time than the service lose no
// create to their end.

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proxyIdle is how long the proxies of this test keep an idle connection to the service.
const proxyIdle = time.Second

// TestNoRequestMeetsTheEndOfAnIdleConnection: the service keeps idle connections for longer than
// nginx or HAProxy does, and clients send creates, which no proxy repeats, about when it ends its
// own.
func TestNoRequestMeetsTheEndOfAnIdleConnection(t *testing.T) {
	for name, front := range map[string]func(t *testing.T, s *server) (url string){
		"nginx": startNginx,
		"HAProxy": func(t *testing.T, s *server) string {
			folder, hashing, inTurn := t.TempDir(), ownAddress(t), ownAddress(t)
			servers := fmt.Sprintf("\tserver petstore %s pool-purge-delay %v\n",
				strings.TrimPrefix(s.address(), "http://"), proxyIdle)
			runBalancer(t, folder, balancerConfig(t, folder, hashing, inTurn, servers))
			return "http://" + hashing + "/v1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, "-idle-timeout", fmt.Sprint(2*proxyIdle))
			url := front(t, s)
			const clients, rounds = 64, 6
			var sending sync.WaitGroup
			for i := range clients {
				sending.Go(func() {
					client := newHTTPClient(1)
					defer client.CloseIdleConnections()
					for range rounds {
						time.Sleep(proxyIdle + time.Duration(i-clients/2)*200*time.Microsecond)
						through := &server{url: url, key: s.key}
						a, err := through.send(t.Context(), client, "POST", "/pets", rex)
						if err != nil || a.status != http.StatusCreated {
							t.Errorf("a create gets %+v, %v", a, err)
						}
					}
				})
			}
			sending.Wait()
		})
	}
}

// startNginx starts Debian's nginx before a service, as the documents configure it, but without
// TLS, and with proxyIdle. It returns its URL up to and including /v1.
func startNginx(t *testing.T, s *server) (url string) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatalf("install Debian's nginx-light: %v", err)
	}
	folder, address := t.TempDir(), ownAddress(t)
	site := readFile(t, "../docs/deploy/nginx.conf")
	for _, change := range [][2]string{
		{`server 127\.0\.0\.1:8080;`, "server " + strings.TrimPrefix(s.address(), "http://") + ";"},
		{`keepalive 64;`, fmt.Sprintf("keepalive 64; keepalive_timeout %v;", proxyIdle)},
		{`listen 443 .*`, "listen " + address + ";"},
		{`listen \[::\]:443 .*|ssl_.*|error_log .*`, ""},
	} {
		pattern := regexp.MustCompile(change[0])
		if !pattern.MatchString(site) {
			t.Errorf("docs/deploy/nginx.conf has nothing like %s", pattern)
		}
		site = pattern.ReplaceAllLiteralString(site, change[1])
	}
	config := filepath.Join(folder, "nginx.conf")
	noError(t, os.WriteFile(config, []byte("daemon off; user root; pid nginx.pid;\n"+
		"error_log stderr crit; events {}\nhttp {\n"+site+"}\n"), 0o600))
	p := launch(t, exec.Command(program, "-e", "stderr", "-p", folder, "-c", config))
	t.Cleanup(func() { // it takes its workers along
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		p.status()
	})
	eventually(t, longEnough, func() error {
		res, err := http.Get("http://" + address + "/openapi.json")
		if err != nil {
			return fmt.Errorf("%w: %s", err, p.log.String())
		}
		return res.Body.Close()
	})
	return "http://" + address + "/v1"
}
