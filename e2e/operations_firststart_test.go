package e2e

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestALogIsNotLostBehindADanglingLink removes the file that a link leads to,
// whose pets are in the -wal that stays there. SQLite would delete the log of a
// database that it makes anew; the log waits for its file to come back.
func TestALogIsNotLostBehindADanglingLink(t *testing.T) {
	const added = 3
	s := start(t)
	for range added {
		if r, err := call(s.url, s.key, "POST", "/pets", rex, ""); err != nil ||
			r.status != http.StatusCreated {
			t.Fatal(r, err)
		}
	}
	s.kill()
	folder, links := filepath.Dir(s.db), t.TempDir()
	relative, err := filepath.Rel(links, s.db)
	noError(t, err)
	for name, to := range map[string]string{"absolute.db": s.db, "relative.db": relative,
		"chain.db": "absolute.db"} {
		noError(t, os.Symlink(to, filepath.Join(links, name)))
	}
	noError(t, os.Symlink(folder, filepath.Join(links, "folder")))
	noError(t, os.Rename(s.db, s.db+".aside"))
	before := files(t, folder)
	for _, link := range []string{"absolute.db", "relative.db", "chain.db",
		"folder/" + filepath.Base(s.db)} {
		db := filepath.Join(links, link)
		for _, args := range [][]string{{"key", "create"}, {"key", "list"},
			{"-addr", "127.0.0.1:0"}, {"backup", filepath.Join(t.TempDir(), "copy.db")}} {
			cmd := program(args...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+db)
			fails(t, cmd, db)
			after := files(t, folder)
			if name := filepath.Base(s.db); after[name] == "" {
				delete(after, name) // an empty file may be left
			}
			if !maps.Equal(before, after) {
				t.Errorf("%s, of %s: the files are %q now and were %q", args, link,
					slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
				for name, content := range before { // the next case begins anew
					noError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
				}
				_ = os.Remove(s.db)
			}
		}
		if t.Failed() {
			break // the other links would say it all again
		}
	}
	noError(t, os.Rename(s.db+".aside", s.db))
	s.run()
	if found := len(s.everyAnimal(t)["Rex"]); found != added {
		t.Errorf("of %d pets %d are there", added, found)
	}
}

// TestANewKeyIsToldWithItsDatabase makes a key without saying where. In the
// wrong folder that makes a database that no service knows, and only the
// full name of the file tells.
func TestANewKeyIsToldWithItsDatabase(t *testing.T) {
	folder, err := filepath.EvalSymlinks(t.TempDir())
	noError(t, err)
	cmd := program("key", "create")
	cmd.Dir = folder
	p := succeeds(t, cmd)
	if !strings.Contains(p.log.String(), filepath.Join(folder, "petstore.db")) {
		t.Errorf("the database is not named: %s", p.told())
	}
}

// TestAStartThatFailsLeavesNoDatabase starts the service on ports that are taken.
func TestAStartThatFailsLeavesNoDatabase(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	for _, flags := range [][]string{{"-addr", address}, {"-addr", "127.0.0.1:0", "-debug-addr",
		address}} {
		folder := t.TempDir()
		fails(t, program(append(flags, "-db", filepath.Join(folder, "petstore.db"))...), address)
		if left := files(t, folder); len(left) > 0 {
			t.Errorf("%q leaves %q", flags, slices.Sorted(maps.Keys(left)))
		}
	}
}

// TestAKeyThatCannotBeShownIsNotStored makes keys whose only showing goes to a
// full disk, or to a program that reads no more.
func TestAKeyThatCannotBeShownIsNotStored(t *testing.T) {
	full := func(t *testing.T) *os.File {
		file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		noError(t, err)
		return file
	}
	closed := func(t *testing.T) *os.File {
		reader, writer, err := os.Pipe()
		noError(t, err)
		noError(t, reader.Close())
		return writer
	}
	for name, stdout := range map[string]func(t *testing.T) *os.File{"a full disk": full,
		"a closed pipe": closed} {
		for _, c := range []struct {
			name string
			args []string
			keys int // before
		}{
			{"create", []string{"key", "create"}, 1},
			{"create in a new database", []string{"key", "create"}, 0},
			{"rotate", []string{"key", "rotate", "1"}, 1},
			{"the first start", []string{"-addr", "127.0.0.1:0"}, 0},
		} {
			t.Run(c.name+", "+name, func(t *testing.T) {
				s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
				before := ""
				for range c.keys {
					s.newKey()
					before = s.command("key", "list", "-db", s.db)
				}
				cmd := program(c.args...)
				cmd.Env = append(cmd.Env, "PETSTORE_DB="+s.db)
				file := stdout(t)
				defer file.Close()
				cmd.Stdout = file
				p := launch(t, cmd)
				if p.status() != 1 || p.log.String() == "" {
					t.Errorf("%s; want status 1 and a word why", p.told())
				}
				if c.keys > 0 {
					if after := s.command("key", "list", "-db", s.db); after != before {
						t.Errorf("the keys were\n%s\nand are\n%s", before, after)
					}
					return
				}
				s.run() // on a database with a key it would print no first one
				eventually(t, 2*time.Second, func() error {
					if keyForm.MatchString(s.out.String()) {
						return nil
					}
					return fmt.Errorf("the next start prints no first key, but %q", s.out)
				})
			})
		}
	}
}

// TestTheFirstLinesWorkAsPasted runs the commands that a new service suggests:
// one that lists, and one that adds a pet, since a new store has none to list.
func TestTheFirstLinesWorkAsPasted(t *testing.T) {
	certificate := filepath.Join(t.TempDir(), "certificate.pem")
	writeCertificate(t, certificate) // it is localhost's, and not that of an IP address
	for name, flags := range map[string][]string{
		"over HTTP": {"-addr", "127.0.0.1:0"},
		"over TLS":  {"-addr", "localhost:0", "-tls-cert", certificate, "-tls-key", certificate},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
			s.run(flags...)
			if first := regexp.MustCompile(`https?://[^ "]+`).FindString(
				s.log.String()[strings.Index(s.log.String(), "ready"):]); first != s.url {
				t.Errorf("the line that says ready names %s before the API, which is at %s", first,
					s.url)
			}
			suggestion := regexp.MustCompile(`(?m)^ *(curl .*(?:\\\n.*)*)$`)
			var suggested [][]string
			eventually(t, longEnough, func() error { // stdout and stderr are read apart
				suggested = suggestion.FindAllStringSubmatch(s.out.String(), -1)
				if len(suggested) < 2 {
					return fmt.Errorf("stdout has fewer than two commands: %q", s.out)
				}
				return nil
			})
			var statuses []string
			for _, command := range suggested {
				paste := exec.Command("sh", "-c", strings.Replace(command[1], "curl ", "curl -i ",
					1))
				paste.Env = append(os.Environ(), "CURL_CA_BUNDLE="+certificate)
				out, err := paste.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v\n%s", command[1], err, tail(string(out)))
				}
				statuses = append(statuses,
					regexp.MustCompile(`HTTP/\S+ (\d+)|$`).FindStringSubmatch(string(out))[1])
			}
			if want := []string{"200", "201"}; !slices.Equal(statuses, want) {
				t.Errorf("the commands give %q, want %q:\n%s", statuses, want, s.out)
			}
		})
	}
}

// TestAnUnknownVariableIsNamed gives the program settings that it does not have,
// as a slip of the pen does. Those of another command are no slips.
func TestAnUnknownVariableIsNamed(t *testing.T) {
	const unknown = "PETSTORE_BASEURL"
	for _, args := range [][]string{{"-addr", "127.0.0.1:0"}, {"key", "list"}, {"key", "create"}} {
		t.Run(args[len(args)-1], func(t *testing.T) {
			s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
			s.newKey()
			cmd := program(args...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+s.db, unknown+"=https://example.com/v1",
				"PETSTORE_BAN_FOR=1m", "PETSTORE_OVERLAP=1h")
			p := launch(t, cmd)
			eventually(t, longEnough, func() error {
				if p.within(0) || strings.Contains(p.log.String(), `"ready"`) {
					return nil
				}
				return fmt.Errorf("%s does not get ready", p)
			})
			_ = p.cmd.Process.Signal(syscall.SIGTERM) // a command has ended by now
			if p.status() != 0 {
				t.Error(p.told())
			}
			if !strings.Contains(p.log.String(), unknown) {
				t.Errorf("%s is not named: %s", unknown, p.told())
			}
			for _, known := range []string{"PETSTORE_DB", "PETSTORE_BAN_FOR", "PETSTORE_OVERLAP"} {
				if strings.Contains(p.log.String(), known) {
					t.Errorf("%s is known, and named: %s", known, p.told())
				}
			}
		})
	}
}

// getAs asks for an address without a key, under a name of the host if there is one.
func getAs(t *testing.T, address, host string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, address, nil)
	noError(t, err)
	r.Host = host
	response, err := callers.Do(r)
	noError(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	noError(t, err)
	return response.StatusCode, string(data)
}

// TestALoadBalancerIsToldReadiness asks as one does: without a key, and often.
// It is not told why the service is unavailable, and costs the store little.
func TestALoadBalancerIsToldReadiness(t *testing.T) {
	s := start(t, debugFlags...)
	ready := func() (int, string) { return getAs(t, s.address()+"/readyz", "") }
	if status, body := ready(); status != http.StatusOK || strings.TrimSpace(body) != "ok" {
		t.Fatalf("/readyz is %d %q", status, body)
	}
	const commits = "petstore_commit_duration_seconds_count"
	before, began := s.metric(commits), time.Now()
	var balancers sync.WaitGroup
	for _, address := range []string{s.address(), s.debug, s.address(), s.debug} {
		balancers.Go(func() {
			for time.Since(began) < 2500*time.Millisecond {
				if status, body := getAs(t, address+"/readyz", ""); status != http.StatusOK {
					t.Errorf("/readyz is %d %q", status, body)
				}
			}
		})
	}
	balancers.Wait()
	probes, atMost := s.metric(commits)-before, 2+math.Floor(time.Since(began).Seconds()/2)
	if probes > atMost {
		t.Errorf("in %v they cost %v commits, want %v at most", time.Since(began), probes, atMost)
	}

	unlock := lock(t, s.db)
	body := ""
	eventually(t, longEnough, func() (err error) {
		status := 0
		if status, body = ready(); status != http.StatusServiceUnavailable {
			err = fmt.Errorf("with the store locked /readyz is %d %q", status, body)
		}
		return err
	})
	if !strings.Contains(body, "unavailable") || strings.Contains(body, "lock") ||
		strings.Contains(body, s.db) {
		t.Errorf("with the store locked /readyz says %q", body)
	}
	unlock()
	eventually(t, longEnough, func() error {
		if status, body := ready(); status != http.StatusOK {
			return fmt.Errorf("with the lock gone /readyz is %d %q", status, body)
		}
		return nil
	})
}

// TestTheDebugAddressIsNoWebPages asks under names that a web page's own server
// may let lead to this machine. A browser sends the name that the page has.
func TestTheDebugAddressIsNoWebPages(t *testing.T) {
	s := start(t, "-debug-addr", "localhost:0")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.debug, "http://"))
	noError(t, err)
	for host, allowed := range map[string]bool{
		"localhost:" + port:             true,
		"LocalHost:" + port:             true,
		"127.0.0.1:" + port:             true,
		"[::1]:" + port:                 true,
		"10.0.0.7":                      true, // behind a forwarded port
		"rebound.example.com:" + port:   false,
		"rebound.example.com":           false,
		"localhost.example.com:" + port: false,
		"127.0.0.1.example.com":         false,
	} {
		for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/debug/pprof/",
			"/debug/pprof/cmdline"} {
			status, body := getAs(t, s.debug+path, host)
			if allowed && status != http.StatusOK || !allowed && (status < 400 || status >= 500 ||
				strings.Contains(body, s.db)) {
				t.Errorf("%s of the host %s is %d, want it to be allowed: %t", path, host, status,
					allowed)
			}
		}
	}
	_, list := getAs(t, s.debug+"/", "")
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/debug/pprof/"} {
		if !strings.Contains(list, path) {
			t.Errorf("the debug address does not list %s: %q", path, list)
		}
	}
	if status, _ := getAs(t, s.debug+"/nothing", ""); status != http.StatusNotFound {
		t.Errorf("what is not there is %d", status)
	}
}
