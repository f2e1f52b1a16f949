package e2e

// README.md is run as its reader would run it. A console block holds commands,
// after "$ ", and what they print; an sh block holds commands only; every other
// block is a file, and the text above it says which one ("Put this into
// `main.go`:"). They run from top to bottom in one shell, and what is printed
// must be what is shown. A value that differs from run to run is compared by
// its shape; a key or a port that is shown stands for the real one from then on.
// A block that cannot be run like that is an error, so that none can rot.

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Sections that other tests run, since they reach outside a folder: on a
// machine of its own, and as those of two machines.
const (
	production  = "In production"    // deploy_test.go
	replication = "A second machine" // litestream_test.go
)

// block is a fenced block of README.md.
type block struct {
	line     int    // number of its first line
	section  string // the heading of level 2 or 3 above it
	language string
	file     string // where the text above it says that it goes
	lines    []string
}

func (b *block) text() string { return strings.Join(b.lines, "\n") + "\n" }

func (b *block) String() string { return fmt.Sprintf("README.md:%d", b.line) }

var goesInto = regexp.MustCompile("(?:into|as) `([^`]+)`[^`]*:$")

// readmeBlocks are the blocks of README.md in their order.
func readmeBlocks(t *testing.T) []*block {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []*block
	var open *block
	var section, above string
	for i, line := range strings.Split(string(text), "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open != nil:
			blocks, open, above = append(blocks, open), nil, ""
		case open != nil:
			open.lines = append(open.lines, line)
		case fence:
			open = &block{line: i + 2, section: section, language: language}
			if file := goesInto.FindStringSubmatch(above); file != nil {
				open.file = file[1]
			}
		case strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t"):
			t.Errorf("README.md:%d: put code between fences, where the tests look for it", i+1)
		case strings.HasPrefix(line, "## ") || strings.HasPrefix(line, "### "):
			section, above = strings.TrimLeft(line, "# "), ""
		case line != "":
			above = line
		}
	}
	if len(blocks) == 0 || open != nil {
		t.Fatal("the blocks of README.md cannot be told from its text")
	}
	return blocks
}

// TestTheReadmesFirstCommandsMakeAKeyThatWorks follows the first block, and
// pastes the line that it prints.
func TestTheReadmesFirstCommandsMakeAKeyThatWorks(t *testing.T) {
	first := readmeBlocks(t)[0]
	if len(first.lines) != 2 || first.lines[1] != "go run ." {
		t.Fatalf("%s: expected a git clone and go run ., not %q", first, first.lines)
	}
	x := newTerminal(t, "bash")
	x.moveToFreePorts()
	x.run("cd " + t.TempDir())
	x.values["<this repository>"] = snapshot(t)
	x.run(first.lines[0])
	printed := x.serve(first.lines[1])
	paste := regexp.MustCompile(`(?m)^ *curl .*`).FindString(printed)
	if answer := x.run(paste); !strings.HasPrefix(answer, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("%q, printed by %q, gave %q", paste, first.lines[1], answer)
	}
}

// TestTheReadmeShowsWhatItsCommandsPrint runs all that is not in those
// sections, in a fresh clone.
func TestTheReadmeShowsWhatItsCommandsPrint(t *testing.T) {
	blocks := slices.DeleteFunc(readmeBlocks(t)[1:], func(b *block) bool { return b.section == production || b.section == replication })
	for _, b := range blocks {
		b.mustStayInside(t)
	}
	x := newTerminal(t, "bash")
	x.moveToFreePorts()
	x.run("cd " + t.TempDir() + " && git clone -q " + snapshot(t) + " petstore && cd petstore")
	for _, b := range blocks {
		x.follow(b)
	}
}

var outside = regexp.MustCompile(`(^|[ "'=<>])[/~]|\bsudo `)

// mustStayInside ends the test before it runs, on the machine of whoever tests,
// a command that reaches outside its folder.
func (b *block) mustStayInside(t *testing.T) {
	t.Helper()
	for _, line := range b.lines {
		command, prompt := strings.CutPrefix(line, "$ ")
		if (prompt || b.language == "sh") && outside.MatchString(command) || filepath.IsAbs(b.file) {
			t.Fatalf("%s: what reaches outside the folder belongs under %q: %s%s", b, production, b.file, command)
		}
	}
}

// TestTheReadmeNamesEveryFlagAndKeyCommand compares its tables with petstore help.
func TestTheReadmeNamesEveryFlagAndKeyCommand(t *testing.T) {
	help, err := program("help").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string // the first cell of each row of each table
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1])
	}
	for _, named := range []struct{ inHelp, inReadme string }{
		{`(?m)^  (-[a-z-]+(?: [A-Z:]+)?) ?$`, "`(-[^`]+)`"},
		{`(?m)^petstore (key [a-z]+)`, "`(key [a-z]+)"},
	} {
		inHelp := findAll(named.inHelp, string(help))
		inReadme := findAll(named.inReadme, strings.Join(rows, "\n"))
		if len(inHelp) == 0 || !slices.Equal(inHelp, inReadme) {
			t.Errorf("petstore help has\n%q\nand the tables of README.md\n%q", inHelp, inReadme)
		}
	}
}

// findAll is what the first group matches, sorted.
func findAll(pattern, text string) (found []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return found
}

// snapshot is a repository whose one commit is the working tree, so that what
// is tested is what is being changed.
func snapshot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "--all", ".."},
		{"-c", "user.name=e2e", "-c", "user.email=e2e@example.com", "commit", "-q", "-m", "the working tree"},
	} {
		args = append([]string{"--git-dir", dir, "--work-tree", ".."}, args...)
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir
}

// terminal is a shell that commands are typed into.
type terminal struct {
	t      *testing.T
	stdin  io.Writer
	stdout *bufio.Reader
	stderr *logBuffer
	values map[string]string // what the README shows: what it is in this run
	logs   string            // where the services write
	served int               // services that were started
}

// newTerminal starts a shell with a command.
func newTerminal(t *testing.T, command ...string) *terminal {
	t.Helper()
	x := &terminal{t: t, stderr: &logBuffer{}, values: map[string]string{}, logs: t.TempDir()}
	shell := exec.Command(command[0], command[1:]...)
	shell.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PETSTORE_") || strings.HasPrefix(v, "GOFLAGS=")
	})
	shell.Env = append(shell.Env, "GOFLAGS=-buildvcs=auto") // Go's default, whatever this machine's is
	shell.Stderr = x.stderr
	stdin, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	x.stdin, x.stdout = stdin, bufio.NewReader(stdout)
	hung := time.AfterFunc(5*time.Minute, func() { _ = shell.Process.Kill() })
	t.Cleanup(func() {
		hung.Stop()
		stdin.Close()
		if err := shell.Wait(); err != nil {
			t.Errorf("the shell ended with %v", err)
		}
	})
	return x
}

// moveToFreePorts puts free ports in the place of those that the README names.
func (x *terminal) moveToFreePorts() {
	x.values[":8080"], x.values[":8081"] = freePort(x.t), freePort(x.t)
	x.run("export PETSTORE_ADDR=localhost:8080")
}

// freePort is a port of this machine, with a colon, that is free just now.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return fmt.Sprint(":", listener.Addr().(*net.TCPAddr).Port)
}

// follow does what a block says.
func (x *terminal) follow(b *block) {
	x.t.Helper()
	switch {
	case b.language == "console":
		x.transcript(b)
	case b.language == "sh":
		for _, command := range b.lines {
			x.enter(command)
		}
	case b.file != "":
		x.write(b.file, strings.ReplaceAll(b.text(), "API_KEY", x.run(`printf %s "$KEY"`)))
	default:
		x.t.Errorf("%s: no test uses this block: make it console or sh, or name its file in the line above", b)
	}
}

// transcript runs the commands of a block and compares what they print with
// what it shows.
func (x *terminal) transcript(b *block) {
	x.t.Helper()
	for i := 0; i < len(b.lines); {
		command, ok := strings.CutPrefix(b.lines[i], "$ ")
		if !ok {
			x.t.Fatalf("%s: a console block begins with a command, after $", b)
		}
		end := i + 1
		for end < len(b.lines) && !strings.HasPrefix(b.lines[end], "$ ") {
			end++
		}
		shown := strings.Join(b.lines[i+1:end], "\n")
		printed := strings.ReplaceAll(strings.TrimSpace(x.enter(command)), "\r\n", "\n")
		x.learnKeys(shown, printed)
		if want, got := shape(x.real(shown)), shape(printed); got != want {
			x.t.Errorf("%s: $ %s\nprints\n%s\nand not\n%s", b, command, got, want)
		}
		i = end
	}
}

var serves = regexp.MustCompile(`^\./petstore( -|$)`)

// enter runs a command, or starts a service, and returns what it prints.
func (x *terminal) enter(command string) string {
	x.t.Helper()
	if serves.MatchString(command) {
		return x.serve(command)
	}
	return x.run(command)
}

// run runs a command, which must succeed, and returns its stdout.
func (x *terminal) run(command string) string {
	x.t.Helper()
	const mark = "\n---- exit status "
	fmt.Fprintf(x.stdin, "{ %s\n} </dev/null\nprintf '%s%%d\\n' $?\n", x.real(command), strings.ReplaceAll(mark, "\n", `\n`))
	var printed bytes.Buffer
	for {
		line, err := x.stdout.ReadString('\n')
		printed.WriteString(line)
		if err != nil {
			x.t.Fatalf("$ %s: the shell ended: %v\n%s%s", command, err, &printed, x.stderr)
		}
		if out, status, done := strings.Cut(printed.String(), mark); done {
			if status != "0\n" {
				x.t.Fatalf("$ %s: exit status %s\n%s%s", command, status, out, x.stderr)
			}
			return out
		}
	}
}

// write makes a file.
func (x *terminal) write(file, text string) {
	x.t.Helper()
	x.run(fmt.Sprintf("cat >%s <<'END OF FILE'\n%sEND OF FILE", file, text))
}

// serve starts a service as in a terminal of its own, waits until it is ready,
// and returns its stdout. It must end well at the Ctrl-C when the test ends.
func (x *terminal) serve(command string) string {
	x.t.Helper()
	x.served++
	log := filepath.Join(x.logs, strconv.Itoa(x.served))
	// With -m the service has a process group, so that a signal reaches what go run starts.
	pid := strings.TrimSpace(x.run(fmt.Sprintf("set -m; { exec %s\n} </dev/null >%s.out 2>%[2]s.err & set +m; echo $!", command, log)))
	ended := "wait " + pid
	if !serves.MatchString(command) {
		ended += " || true" // go run itself ends with 1 at a Ctrl-C
	}
	x.t.Cleanup(func() { x.run(fmt.Sprintf("kill -INT -- -%s && { %s; }", pid, ended)) })
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		stderr, err := os.ReadFile(log + ".err")
		if err == nil && bytes.Contains(stderr, []byte(`"msg":"ready"`)) {
			break
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("$ %s: is not ready: %v\n%s", command, err, stderr)
		}
	}
	stdout, err := os.ReadFile(log + ".out")
	if err != nil {
		x.t.Fatal(err)
	}
	return string(stdout)
}

// real puts the values of this run in the place of those that are shown.
func (x *terminal) real(shown string) string {
	var pairs []string
	for value, now := range x.values {
		pairs = append(pairs, value, now)
	}
	return strings.NewReplacer(pairs...).Replace(shown)
}

var keyPattern = regexp.MustCompile(`pet_(live|test)_[0-9A-Za-z]{38}`)

// learnKeys notes the keys that were printed where others are shown, and the
// last four characters of each, by which people tell them apart.
func (x *terminal) learnKeys(shown, printed string) {
	now := keyPattern.FindAllString(printed, -1)
	for i, key := range keyPattern.FindAllString(shown, -1) {
		if i < len(now) && x.values[key] == "" && key[:len("pet_live_")] == now[i][:len("pet_live_")] {
			x.values[key] = now[i]
			x.values[key[len(key)-4:]] = now[i][len(key)-4:]
		}
	}
}

// shapes are the values that no two runs share, but for keys and ports.
var shapes = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`(X-Request-Id: )[0-9a-f]{16}`), "${1}REQUEST"},
	{regexp.MustCompile(`(X-RateLimit-Reset: )\d{10}`), "${1}UNIX-TIME"},
	{regexp.MustCompile(`(;t=)\d+`), "${1}SECONDS"},
	{regexp.MustCompile(`(Date: )\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT`), "${1}DATE"},
	{regexp.MustCompile(`(ends )\d{4}-\d\d-\d\d`), "${1}YYYY-MM-DD"},
	{regexp.MustCompile(`v0\.0\.0-\d{14}-[0-9a-f]{12} go1\.\d+(\.\d+)? [0-9a-f]{40}`), "VERSION GO REVISION"},
	{regexp.MustCompile(`\d+( requests left)`), "N${1}"}, // a minute may end while a client is built
}

// shape is a text with the varying values replaced by their names.
func shape(text string) string {
	for _, v := range shapes {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return text
}
