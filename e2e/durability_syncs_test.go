package e2e

// Syncs that fail. strace makes the system call fail, with which the kernel's pages stay right.
// What the kernel forgets after a real failure only a file system shows that is mounted anew: an
// ext4 on a disk that refuses.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"petstore/e2e/planted"
)

// TestAfterAFailedSyncNothingIsWritten although the disk is well again: creates are refused, reads
// answered, and copies made. A start is refused until the mark is removed. Then what was answered
// 201 is there, and of what was answered 503 at most what went to the log before.
func TestAfterAFailedSyncNothingIsWritten(t *testing.T) {
	t.Parallel()
	stock := newStock(t)
	for name, begin := range map[string]func(t *testing.T, s *server) (end func()){
		"no sync":          inject(syncCalls, "EIO"),
		"every other sync": inject(syncCalls, "EIO:when=1+2"),
		"no space":         inject(syncCalls, "ENOSPC"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stock.serve(t, false)
			book := newLedger(t, s)
			end := fault{begin: begin}.strike(t, s)
			book.awaitRefusals(fault{})
			book.doubtRefused()
			end()
			for range 20 {
				a := book.create(book.next())
				if a == nil || a.status != http.StatusServiceUnavailable {
					t.Errorf("after the fault, a create is answered %v", a)
				}
			}
			book.awaitReadiness(http.StatusServiceUnavailable)
			book.read(stock)
			if said := "nothing is written to the database any more"; strings.Count(s.log.String(),
				said) != 1 {
				t.Errorf("the log does not say once that %s:\n%s", said, tail(s.log.String()))
			}
			s.copyTo(t)
			s.interrupt()
			wantRefusedStart(t, s)
			noError(t, os.Remove(s.db+"-failed"))
			s.run(debugFlags...)
			book.connect()
			book.repeatRefused()
			book.audit()
		})
	}
}

// wantRefusedStart wants a start to be refused, and commands that write, and the log left.
func wantRefusedStart(t *testing.T, s *server) {
	t.Helper()
	before := readFile(t, s.db+"-wal")
	for _, args := range [][]string{
		{"-addr", "127.0.0.1:0", "-db", s.db},
		{"key", "create", "-db", s.db},
	} {
		out, err := program(args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "mount it again, and then delete") {
			t.Errorf("petstore %s after a failed sync: %v\n%s", args, err, out)
		}
	}
	if readFile(t, s.db+"-wal") != before || before == "" {
		t.Error("the log was changed")
	}
}

// TestEveryFailedSyncIsMarked lets all syncs of the database fail, or all of its log, for whatever
// writes. Then the mark is there, and the log as it was, or longer.
func TestEveryFailedSyncIsMarked(t *testing.T) {
	t.Parallel()
	stock := newScene(t)
	for _, line := range []string{"key create", "pet delete 1", "restore COPY",
		"-addr 127.0.0.1:0"} {
		for _, suffix := range []string{"", "-wal"} {
			t.Run(line+suffix, func(t *testing.T) {
				sc := stock.again(t)
				before := readFile(t, sc.db+"-wal")
				args := strings.Fields(strings.Replace(line, "COPY", sc.copy, 1))
				cmd := program(args...)
				cmd.Env = append(cmd.Env, "PETSTORE_DB="+sc.db)
				p := launch(t, strace(cmd, "/dev/null", "-P", sc.db+suffix,
					"-e", "trace="+syncCalls, "-e", "inject="+syncCalls+":error=EIO"))
				if line[0] == '-' {
					_, _ = call(p.url(), sc.key, "POST", "/pets", rex, "")
					_ = p.stop()
				}
				status := p.status()
				if !isThere(sc.db + "-failed") {
					t.Errorf("nothing is marked, with status %d: %s", status, p.told())
				}
				if after := readFile(t, sc.db+"-wal"); len(after) < len(before) {
					t.Errorf("of %d bytes the log has %d: %s", len(before), len(after), p.told())
				}
				out, err := program("key", "list", "-db", sc.db).CombinedOutput()
				if err != nil {
					t.Errorf("key list: %v\n%s", err, out)
				}
			})
		}
	}
}

// TestANameThatIsNotSyncedIsMarked: SQLite drops the error of that sync, which the folder has.
func TestANameThatIsNotSyncedIsMarked(t *testing.T) {
	t.Parallel()
	sc := newScene(t).again(t)
	cmd := program("key", "create", "-db", sc.db)
	p := launch(t, strace(cmd, "/dev/null", "-P", filepath.Dir(sc.db),
		"-e", "trace="+syncCalls, "-e", "inject="+syncCalls+":error=EIO"))
	if status := p.status(); status != 1 || !isThere(sc.db+"-failed") {
		t.Errorf("status %d, marked %t: %s", status, isThere(sc.db+"-failed"), p.told())
	}
}

// TestAMarkOfAnEarlierBootThatStaysIsRefused: beside it, no later mark could be made.
func TestAMarkOfAnEarlierBootThatStaysIsRefused(t *testing.T) {
	sc := newScene(t).again(t)
	mark := sc.db + "-failed"
	noError(t, os.WriteFile(mark, []byte(strings.Repeat("0", 36)), 0o600))
	tool(t, "mount", "--bind", mark, mark) // what is mounted cannot be removed
	t.Cleanup(func() { tool(t, "umount", mark) })
	out, err := program("key", "create", "-db", sc.db).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "remove "+mark) {
		t.Errorf("beside a mark that stays: %v\n%s", err, out)
	}
}

// refusingDisk is an ext4 on a disk that can run out of space although the file system has some, as
// one of a thin pool may: a loop device on a file with holes, in a small file system in memory.
type refusingDisk struct {
	t                  *testing.T
	pool, mount, image string
	loop               string
}

func newRefusingDisk(t *testing.T) *refusingDisk {
	t.Helper()
	d := &refusingDisk{t: t, pool: t.TempDir(), mount: t.TempDir()}
	d.image = filepath.Join(d.pool, "image")
	mount(t, d.pool, "size=160m")
	noError(t, os.WriteFile(d.image, nil, 0o600))
	noError(t, os.Truncate(d.image, 256<<20))
	tool(t, "mkfs.ext4", "-q", "-b", "4096", "-E", "nodiscard", "-J", "size=4", "-m", "0", d.image)
	if !d.attach() {
		t.Skip("this machine has no loop device for a disk that refuses")
	}
	t.Cleanup(d.detach)
	// From here on, the journal has its space.
	warm, err := os.Create(filepath.Join(d.mount, "warm"))
	noError(t, err)
	defer warm.Close()
	for range 700 {
		_, err := warm.Write(make([]byte, 4096))
		noError(t, err)
		noError(t, warm.Sync())
	}
	return d
}

// attach mounts the file system, unless there is no loop device.
func (d *refusingDisk) attach() bool {
	d.t.Helper()
	out, err := exec.Command("losetup", "-f", "--show", d.image).Output()
	if err != nil {
		return false
	}
	d.loop = strings.TrimSpace(string(out))
	// A write of which a part finds space is a success for the loop device. So each is of one page.
	queue := filepath.Join("/sys/block", filepath.Base(d.loop), "queue/max_sectors_kb")
	noError(d.t, os.WriteFile(queue, []byte("4"), 0))
	tool(d.t, "mount", d.loop, d.mount)
	return true
}

func (d *refusingDisk) detach() {
	tool(d.t, "umount", d.mount)
	tool(d.t, "losetup", "-d", d.loop)
	// While another test has a copy of the mount in a namespace of its own, the device stays, and
	// may write to the image later.
	eventually(d.t, time.Minute, func() error {
		out, err := exec.Command("losetup", "-j", d.image).Output()
		if err == nil && len(out) > 0 {
			err = fmt.Errorf("the device is there still: %s", out)
		}
		return err
	})
}

// refuse lets writes to new places fail until end is called. What the file system has to say of the
// files so far has its place before: a disk that refuses that takes synced files along.
func (d *refusingDisk) refuse() (end func()) {
	d.t.Helper()
	for _, path := range []string{filepath.Join(d.mount, "warm"), d.loop} {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		noError(d.t, err)
		if path != d.loop {
			_, err = file.WriteString("the journal is written with this")
			noError(d.t, err)
		}
		noError(d.t, file.Sync())
		noError(d.t, file.Close())
	}
	end = fillDisk(d.t, &server{t: d.t, db: filepath.Join(d.pool, "none")})
	return sync.OnceFunc(end)
}

// TestADiskThatRefusesLosesNothing lets the disk refuse what the database needs to grow, until a
// create is refused, or for four seconds. Planted faults show that the test would notice.
func TestADiskThatRefusesLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("as it is", func(t *testing.T) { noError(t, (&refusal{}).endure(t)) })
	faults := []struct {
		name, file string
		changes    []string
	}{
		{
			"the error of a checkpoint is dropped", "sqlite.go",
			[]string{
				"	e.heed(err)\n	return inLog, err == nil", "	return inLog, err == nil",
			},
		},
		{
			"writing goes on", "sqlite.go",
			[]string{"	if e.failed.Load() {\n		return nil, errFailedSync\n	}\n", ""},
		},
		{
			"the mark is made late", "sqlite.go",
			[]string{
				"	if err := markFailed(e.path); err != nil {",
				"	path := e.path\n" +
					"	time.AfterFunc(time.Second, func() { _ = markFailed(path) })\n" +
					"	if err := error(nil); err != nil {",
			},
		},
		{
			"a command that reads empties the log", "sqlite.go",
			[]string{"	reading, err = readMode(real)\n", "	reading = \"mode=rw\"\n"},
		},
	}
	for _, f := range faults {
		noError(t, planted.Check("..", f.file, f.changes))
	}
	for _, f := range planted.Some(t.Name(), 1, faults) {
		t.Run(f.name, func(t *testing.T) {
			program, err := planted.Build("..", t.TempDir(), f.file, f.changes)
			noError(t, err)
			err = (&refusal{program: program}).endure(t)
			if err == nil {
				t.Error("nothing shows it")
			}
			t.Log(err)
		})
	}
}

// refusal is what a program makes of a disk that refuses.
type refusal struct {
	program string // "" for the one under test
	*load
	late error     // what was wrong at the first 503
	end  time.Time // when that was
}

// endure returns the first promise that is broken.
func (r *refusal) endure(t *testing.T) error {
	disk := newRefusingDisk(t)
	s := &server{t: t, db: filepath.Join(disk.mount, "petstore.db"), serves: r.program,
		commands: r.program}
	s.key = s.newKey(unlimited...)
	s.run(debugFlags...)
	t.Cleanup(func() { // before the file system is unmounted
		if s.cmd.ProcessState == nil {
			s.kill()
		}
	})
	refused := make(chan bool)
	r.load = startLoad(s, 0)
	r.pause, r.suffix = 2*time.Millisecond, strings.Repeat("🐶", 150)
	r.firstRefusal = func() {
		r.end = time.Now()
		if !isThere(s.db + "-failed") {
			r.late = errors.New("a create is refused before the mark is made")
		}
		close(refused)
	}
	r.begin(4)
	defer r.load.end()
	// A log that has grown beside a reader has its space from then on, so only the database lacks
	// it. It has enough for what four clients write until the test is over.
	reader := database(t, s.db, "BEGIN", "SELECT * FROM sqlite_schema")
	eventually(t, time.Minute, func() error {
		log, err := os.Stat(s.db + "-wal")
		if err == nil && log.Size() < 56<<20 {
			err = fmt.Errorf("the log has %d bytes", log.Size())
		}
		return err
	})
	noError(t, reader.Close())
	time.Sleep(2 * time.Second)
	well := disk.refuse()
	t.Cleanup(well)
	select {
	case <-refused:
	case <-time.After(4 * time.Second):
	}
	time.Sleep(time.Second / 2)
	well()
	time.Sleep(2 * time.Second)
	r.load.end()
	if err := r.check(); err != nil {
		return err
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if out, err := s.program("backup", "-db", s.db, copied).CombinedOutput(); err != nil {
		return fmt.Errorf("backup: %w\n%s", err, out)
	}
	s.interrupt()
	log := readFile(t, s.db+"-wal")
	if err := r.compare(); err != nil {
		return err
	}
	if !isThere(s.db+"-wal") || readFile(t, s.db+"-wal") != log || log == "" {
		return errors.New("a command that only reads has emptied the log")
	}
	again := s.program("-addr", "127.0.0.1:0", "-db", s.db)
	if out, err := again.CombinedOutput(); err == nil {
		return fmt.Errorf("the service starts before the mount:\n%s", out)
	}
	disk.detach()
	noError(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0))
	// The disk may have refused what the file system notes of its free space.
	_ = exec.Command("fsck.ext4", "-fy", disk.image).Run()
	disk.attach()
	_ = os.Remove(s.db + "-failed") // the disk may have lost it
	if err := r.compare(); err != nil {
		return fmt.Errorf("after the mount: %w", err)
	}
	s.run(debugFlags...)
	s.stop()
	checkIntegrity(t, s.db)
	s.db = copied
	return r.compare()
}

// check says what is wrong with the answers.
func (r *refusal) check() error {
	switch {
	case r.end.IsZero():
		return errors.New("the disk has refused, and no create")
	case r.late != nil:
		return r.late
	}
	last := r.answered[len(r.answered)-1].at
	if last.Sub(r.end) > time.Second/2 { // which is more than the answers before take
		return errors.New("creates are answered 201 again")
	}
	return nil
}

// compare reads the database by an export: all that was answered 201 is there.
func (r *refusal) compare() error {
	export := r.server.program("pet", "export", "-db", r.server.db)
	var stderr bytes.Buffer
	export.Stderr = &stderr
	out, err := export.Output()
	if err != nil {
		return fmt.Errorf("export: %w\n%s", err, &stderr)
	}
	lacking := map[int64]string{}
	for _, a := range r.answered {
		lacking[a.id] = a.name
	}
	for line := range strings.Lines(string(out)) {
		var p pet
		if err := json.Unmarshal([]byte(line), &p); err == nil && lacking[p.ID] == p.Name {
			delete(lacking, p.ID)
		}
	}
	if len(lacking) > 0 {
		ids := slices.Sorted(maps.Keys(lacking))
		return fmt.Errorf("of %d pets, %d are lost, from id %d on", len(r.answered), len(ids),
			ids[0])
	}
	return nil
}
