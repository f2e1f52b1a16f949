package tour

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestTheSyncComesBeforeThe201 looks at the system calls of the service, and of the one that the
// exercise honest calls a lie: that one confirms a pet of which the disk knows nothing.
func TestTheSyncComesBeforeThe201(t *testing.T) {
	if *update {
		t.Skip("-update only renews files")
	}
	c := newClone(t)
	if calls := c.callsOfACreate(); !strings.Contains(calls, "sync(") {
		t.Errorf("there is no sync before the 201:\n%s", calls)
	}
	sqlite := filepath.Join(c.dir, lies[0].file)
	must(t, lies[0].tell(sqlite, sqlite))
	if calls := c.callsOfACreate(); strings.Contains(calls, "sync(") {
		t.Errorf("the lie syncs all the same:\n%s", calls)
	}
}

// callsOfACreate starts the service, adds a pet, and returns the reads, writes and syncs between
// that request and its 201.
func (c *clone) callsOfACreate() string {
	t := c.t
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "petstore")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = c.dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	calls := filepath.Join(dir, "calls")
	cmd := exec.Command("strace", "-f", "-qq", "-s", "64", "-o", calls, "-e",
		"trace=read,write,fsync,fdatasync",
		program, "-addr", "127.0.0.1:0", "-db", filepath.Join(dir, "pets.db"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	stop := sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // strace, and what it traces
		_ = cmd.Wait()
	})
	defer stop()
	var curl []string // the line that adds a pet
	for lines := bufio.NewScanner(stdout); len(curl) == 0 && lines.Scan(); {
		if strings.Contains(lines.Text(), `"name"`) {
			curl = regexp.MustCompile(`Bearer (\S+)".*'(.*)' (http\S+)$`).FindStringSubmatch(
				lines.Text())
		}
	}
	if curl == nil {
		t.Fatal("the service does not print how to add a pet")
	}
	r, err := http.NewRequest(http.MethodPost, curl[3], strings.NewReader(curl[2]))
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+curl[1])
	response, err := http.DefaultClient.Do(r)
	must(t, err)
	must(t, response.Body.Close())
	stop() // so that strace has written all
	text, err := os.ReadFile(calls)
	must(t, err)
	_, create, sent := strings.Cut(string(text), `"POST /v1/pets`)
	between, _, answered := strings.Cut(create, "HTTP/1.1 201")
	if !sent || !answered {
		t.Fatalf("status %d, and strace saw\n%s", response.StatusCode, text)
	}
	return between
}
