package e2e

// Proven here alone: a signal ends each command at once though nobody takes what it prints, or a
// row takes for ever, and leaves nothing half done.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// atOnce is how long a command may take to end after a signal: it promises half
// a second, and the rest is for a busy machine.
const atOnce = time.Second

// endsWithin reports whether a command has ended by then, or has exited as far as it can: the
// kernel ends no process before its sync, which may take long beside other tests.
func (p *process) endsWithin(patience time.Duration) bool {
	if p.within(patience) {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	hasExited := err != nil || strings.Contains(string(status), "\nState:\tZ")
	return hasExited && p.within(longEnough)
}

// stops sends a signal to a command, which must end at once, with a status that
// is not 0 and a line that says why.
func (p *process) stops(signal os.Signal) {
	p.t.Helper()
	noError(p.t, p.cmd.Process.Signal(signal))
	if !p.endsWithin(atOnce) {
		p.t.Errorf("%v after %v %s still runs", atOnce, signal, p)
		return
	}
	line := strings.TrimSuffix(madeDatabase.ReplaceAllString(p.log.String(), ""), "\n")
	if p.status() <= 0 || strings.Contains(line, "\n") || !strings.Contains(line, "signal") {
		p.t.Errorf("after %v: %s; want a status above 0 and one line that says so", signal,
			p.told())
	}
}

// madeDatabase is the line of whoever was the first to need a database.
var madeDatabase = regexp.MustCompile(`(?m)^.*"msg":"a new database was made".*\n`)

// fullPipe is a pipe that takes nothing more, and that nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var ends [2]int
	noError(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK))
	reader, writer := os.NewFile(uintptr(ends[0]), "reader"), os.NewFile(uintptr(ends[1]), "writer")
	t.Cleanup(func() {
		reader.Close()
		writer.Close()
	})
	for err := error(nil); !errors.Is(err, syscall.EAGAIN); {
		_, err = syscall.Write(ends[1], make([]byte, 4096))
	}
	noError(t, syscall.SetNonblock(ends[1], false))
	return writer
}

// hangs returns once a thread of a command is in a system call, as /proc shows it.
func (p *process) hangs(call string) {
	p.t.Helper()
	eventually(p.t, longEnough, func() error {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
		for _, thread := range threads {
			if now, _ := os.ReadFile(thread); strings.HasPrefix(string(now), call) {
				return nil
			}
		}
		if p.within(0) {
			p.t.Fatalf("it ends before it could be stopped: %s", p.told())
		}
		return fmt.Errorf("%s does not hang", p)
	})
}

// TestASignalStopsWhatNobodyTakes stops commands, and a first start, whose stdout
// is a full pipe. They leave no key that was not shown.
func TestASignalStopsWhatNobodyTakes(t *testing.T) {
	pets := petFile(t, 1)
	for _, c := range []struct {
		line string
		keys int // before
	}{
		{"key list", 1},
		{"key usage", 1},
		{"key create", 1},
		{"key create", 0},
		{"key rotate 1", 1},
		{"help", 1},
		{"pet export -", 1},
		{"-addr 127.0.0.1:0", 0}, // the first start
	} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%s, %d keys, %v", c.line, c.keys, signal), func(t *testing.T) {
				s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
				before := "[]\n"
				if c.keys > 0 {
					s.newKey()
					s.command("pet", "import", "-db", s.db, pets)
					before = s.command("key", "list", "-json", "-db", s.db)
				}
				cmd := program(strings.Fields(c.line)...)
				cmd.Env = append(cmd.Env, "PETSTORE_DB="+s.db)
				cmd.Stdout = fullPipe(t)
				p := launch(t, cmd)
				p.hangs(fmt.Sprintf("%d 0x1 ", syscall.SYS_WRITE))
				p.stops(signal)
				if after := s.command("key", "list", "-json", "-db", s.db); after != before {
					t.Errorf("the keys were\n%s\nand are\n%s", before, after)
				}
			})
		}
	}
}

// TestASignalStopsWhatSaysItToNobody: stderr is a full pipe, and stdout the same where that is what
// hangs. What is done then has succeeded.
func TestASignalStopsWhatSaysItToNobody(t *testing.T) {
	for _, c := range []struct {
		line         string
		file, status int // the file that hangs, and the exit status
	}{
		{"help", 1, 1}, {"key create", 2, 0}, {"key set -name other 1", 2, 0},
		{"key list -nonsense", 2, 1}, {"pet import FILE", 2, 0}, {"pet export FILE.new", 2, 0},
		{"backup FILE.db", 2, 0}, {"-addr 127.0.0.1:0", 2, 0},
	} {
		t.Run(c.line, func(t *testing.T) {
			s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
			s.newKey()
			pets := petFile(t, 1)
			cmd := program(strings.Fields(strings.ReplaceAll(c.line, "FILE", pets))...)
			cmd.Env = append(cmd.Env, "PETSTORE_DB="+s.db)
			cmd.Stderr = fullPipe(t)
			if c.file == 1 {
				cmd.Stdout = cmd.Stderr
			}
			p := launch(t, cmd)
			p.hangs(fmt.Sprintf("%d 0x%d ", syscall.SYS_WRITE, c.file))
			noError(t, cmd.Process.Signal(syscall.SIGTERM))
			patience := atOnce
			if c.line[0] == '-' {
				patience += 1500 * time.Millisecond // without requests, a stop takes no longer
			}
			if !p.endsWithin(patience) || p.status() != c.status {
				t.Errorf("%v after the signal: %s", patience, p.told())
			}
		})
	}
}

// computes returns once a command has used half a second of CPU.
func (p *process) computes() {
	p.t.Helper()
	eventually(p.t, longEnough, func() error {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		fields := append(strings.Fields(string(stat)), make([]string, 14)...)
		ticks, _ := strconv.Atoi(fields[13]) // of a hundredth of a second
		if ticks < 50 {
			return fmt.Errorf("%s has not computed for long", p)
		}
		return nil
	})
}

// TestASignalStopsWhatFindsNoNextRow: the second row of a table takes for ever, which the driver
// cannot interrupt, or, where rows are sorted, the first.
func TestASignalStopsWhatFindsNoNextRow(t *testing.T) {
	const view = `ALTER TABLE %[1]s RENAME TO kept;
		ALTER TABLE kept RENAME COLUMN name TO before;
		CREATE VIEW %[1]s AS SELECT *, iif(id < 2, before, (WITH RECURSIVE n (value) AS
			(SELECT 1 UNION ALL SELECT value + 1 FROM n) SELECT count(*) FROM n)) AS name FROM kept`
	for line, table := range map[string]string{
		"pet export": "pets", "key list": "api_keys", "key list -json": "api_keys",
		"key usage": "api_keys",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			s := &server{t: t, db: filepath.Join(t.TempDir(), "petstore.db")}
			s.newKey()
			s.newKey()
			database(t, s.db, "INSERT INTO pets (category_id, status, name) "+
				"VALUES (1, 2, 'Rex'), (1, 2, 'Max')", fmt.Sprintf(view, table)).Close()
			p := launch(t, program(append(strings.Fields(line), "-db", s.db)...))
			p.computes()
			p.stops(os.Interrupt)
		})
	}
}
