// Stop5 shows what stop 5 of docs/tour.md warns of: pets that were confirmed and are lost. It kills processes for
// that, and cuts the power of a disk that is simulated, since a real one would end this program too.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

const pets = 1000

// line is a pet as it is stored.
func line(id int) []byte { return fmt.Appendf(nil, "pet %d\n", id) }

// child stores the pets in a file, confirms each on its stdout, and waits to be killed.
func child(file, how string) error {
	f, err := os.Create(file) //nolint:gosec // of the parent
	if err != nil {
		return err
	}
	var w io.Writer = f
	if how == "buffer" {
		w = bufio.NewWriter(f)
	}
	for id := range pets {
		if _, err := w.Write(line(id)); err != nil {
			return err
		}
		fmt.Println("confirmed")
	}
	select {} // a buffer that nobody flushes any more
}

// afterKill starts a child, kills it when it has confirmed all pets, and returns how many are in its file.
func afterKill(how string) (left int, err error) {
	dir, err := os.MkdirTemp("", "stop5-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	file := filepath.Join(dir, "pets")
	cmd := exec.CommandContext(context.Background(), self) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), "STOP5_FILE="+file, "STOP5_HOW="+how)
	confirmed, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(confirmed)
	for n := 0; n < pets && lines.Scan(); n++ { //nolint:revive // it counts
	}
	_ = cmd.Process.Kill()            // SIGKILL: the child cannot do anything about it
	_ = cmd.Wait()                    // says that it was killed
	content, err := os.ReadFile(file) //nolint:gosec // made above
	return bytes.Count(content, []byte("\n")), err
}

// disk is a simulated one: it takes writes into its cache at once, and a sync, which takes a millisecond, brings
// them to the platter. What is in the cache is lost when the power is cut.
type disk struct {
	mu             sync.Mutex // guards what follows
	cache, platter []byte
	syncs          int
}

func (d *disk) write(data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache = append(d.cache, data...)
}

func (d *disk) sync() {
	d.mu.Lock()
	taken := d.cache
	d.mu.Unlock()
	time.Sleep(time.Millisecond) // a simulated disk is allowed to sleep
	d.mu.Lock()
	defer d.mu.Unlock()
	d.platter = append(d.platter, taken...)
	d.cache = d.cache[len(taken):]
	d.syncs++
}

// afterPowerCut counts the pets that are left.
func (d *disk) afterPowerCut() int { return bytes.Count(d.platter, []byte("\n")) }

// group is the leader and followers of store.go, in small.
type group struct {
	disk    *disk
	mu      sync.Mutex // guards the next two
	queue   []*queued
	leading bool
}

type queued struct {
	data []byte
	wake chan bool // true: lead the next sync; false: this pet is on disk
}

// store returns when the data is on disk.
func (g *group) store(data []byte) {
	q := &queued{data, make(chan bool, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, q)
	lead := !g.leading
	g.leading = true
	g.mu.Unlock()
	if lead || <-q.wake {
		g.lead()
	}
}

func (g *group) lead() {
	runtime.Gosched() // lets others queue
	g.mu.Lock()
	batch := g.queue
	g.queue = nil
	g.mu.Unlock()
	for _, q := range batch {
		g.disk.write(q.data)
	}
	g.disk.sync() // one for all of them
	g.mu.Lock()
	if g.leading = len(g.queue) > 0; g.leading {
		g.queue[0].wake <- true
	}
	g.mu.Unlock()
	for _, q := range batch {
		q.wake <- false
	}
}

// storeAll stores the pets, by 64 clients at a time.
func storeAll(store func(data []byte)) {
	ids := make(chan int, pets)
	for id := range pets {
		ids <- id
	}
	close(ids)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for id := range ids {
				store(line(id))
			}
		})
	}
	wg.Wait()
}

// storeThreeWays stores all pets on three disks: never synced, synced for each pet, and synced by a leader for many.
func storeThreeWays() (unsynced, each, shared *disk) {
	unsynced, each, shared = &disk{}, &disk{}, &disk{}
	storeAll(unsynced.write)
	var one sync.Mutex
	storeAll(func(data []byte) {
		one.Lock()
		defer one.Unlock()
		each.write(data)
		each.sync()
	})
	storeAll((&group{disk: shared}).store)
	return unsynced, each, shared
}

func show(out io.Writer) error {
	_, _ = fmt.Fprintf(out, "killed after %d pets were confirmed:\n", pets)
	for _, how := range []string{"buffer", "write"} {
		left, err := afterKill(how)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "  %-28s %4d are left\n", map[string]string{
			"buffer": "a buffer in the process", "write": "one write(2) for each"}[how], left)
	}
	_, _ = fmt.Fprintf(out, "power cut (simulated) after %d pets were confirmed:\n", pets)
	unsynced, each, shared := storeThreeWays()
	for _, d := range []struct {
		what string
		*disk
	}{{"one write for each", unsynced}, {"a write and a sync for each", each}, {"a leader and its followers", shared}} {
		_, _ = fmt.Fprintf(out, "  %-28s %4d are left, after %d syncs\n", d.what, d.afterPowerCut(), d.syncs)
	}
	return nil
}

func main() {
	run := func() error { return show(os.Stdout) }
	if file := os.Getenv("STOP5_FILE"); file != "" {
		run = func() error { return child(file, os.Getenv("STOP5_HOW")) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
