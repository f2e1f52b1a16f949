package e2e

// The documents are run as their readers would run them, each from top to bottom
// in a shell and a clone of its own. A console block holds commands, after "$ ",
// and what they print; an sh block holds commands only; every other block is a
// file, and the line above it says which one: one to write ("Put this into
// `main.go`:"), or one of this repository that it quotes ("This is
// [deploy/Caddyfile](deploy/Caddyfile):"). A value that differs from run to run is
// compared by its shape; a key or a port that is shown stands for the real one
// from then on. A command that shows lines of the log, and a service, run on a
// terminal, as they do for readers; others show their stdout.
// A block that cannot be run like that is an error, so that none can rot.

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// Sections of any document, and a document, that other tests run, since they reach
// outside a folder: on a machine of its own, and as those of two and three machines.
const (
	production  = "In production"    // docs_production_test.go
	replication = "A second machine" // durability_replication_test.go
	machines    = "docs/cluster.md"  // docs_cluster_test.go
)

// document is a text of this repository that people read.
type document struct {
	path   string // in the repository, with slashes
	lines  []string
	blocks []*block
}

// block is a fenced block of a document.
type block struct {
	document string
	line     int    // number of its first line
	section  string // the heading of level 2 above it
	above    string // the last line of text above it
	language string
	file     string // where the text above it says that it goes
	quoted   string // the file of this repository that it says it is
	lines    []string
}

func (b *block) text() string { return strings.Join(b.lines, "\n") + "\n" }

func (b *block) String() string { return fmt.Sprintf("%s:%d", b.document, b.line) }

var (
	goesInto = regexp.MustCompile("(?:into|as) `([^`]+)`[^`]*:$")
	isQuoted = regexp.MustCompile(`\]\(([^()]+)\)[^.]*:$`)
)

// readDocuments reads all documents, README.md first.
func readDocuments(t *testing.T) (all []*document) {
	t.Helper()
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
	list.Dir = ".."
	names, err := list.Output()
	noError(t, err)
	paths := strings.Fields(string(names))
	slices.Sort(paths)
	for _, name := range paths {
		all = append(all, readDocument(t, name))
	}
	if len(all) == 0 || all[0].path != "README.md" {
		t.Fatalf("README.md is not the first of %q", names)
	}
	return all
}

func readDocument(t *testing.T, name string) *document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	noError(t, err)
	d := &document{path: name, lines: strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")}
	var open *block
	var section, above string
	for i, line := range d.lines {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open != nil:
			d.blocks, open, above = append(d.blocks, open), nil, ""
		case open != nil:
			open.lines = append(open.lines, line)
		case fence:
			open = &block{document: name, line: i + 2, section: section, above: above,
				language: language}
			if file := goesInto.FindStringSubmatch(above); file != nil {
				open.file = file[1]
			} else if link := isQuoted.FindStringSubmatch(above); link != nil {
				open.quoted = path.Join(path.Dir(name), link[1])
			}
		case strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t"):
			t.Errorf("%s:%d: put code between fences, where the tests look for it", name, i+1)
		case strings.HasPrefix(line, "## "):
			section, above = strings.TrimPrefix(line, "## "), ""
		case line != "":
			above = line
		}
	}
	if open != nil {
		t.Fatalf("%s: a block does not end", open)
	}
	return d
}

// TestTheDocumentsShowWhatTheirCommandsPrint runs every block that is not left to
// those tests.
func TestTheDocumentsShowWhatTheirCommandsPrint(t *testing.T) {
	repository := snapshot(t)
	for _, d := range readDocuments(t) {
		blocks := slices.DeleteFunc(d.blocks, func(b *block) bool {
			return b.section == production || b.section == replication || b.document == machines
		})
		if len(blocks) == 0 {
			continue
		}
		t.Run(d.path, func(t *testing.T) {
			t.Parallel()
			for _, b := range blocks {
				b.mustStayInside(t)
			}
			x := newTerminal(t, "bash")
			x.moveToFreePorts()
			x.values["<this repository>"] = repository
			x.run("cd " + t.TempDir())
			if !strings.HasPrefix(blocks[0].lines[0], "$ git clone ") {
				x.run("git clone -q " + repository + " petstore && cd petstore")
			}
			for _, b := range blocks {
				x.follow(b)
			}
		})
	}
}

var outside = regexp.MustCompile(`(^|[ "'=<>])[/~]|\bsudo `)

// mustStayInside ends the test before it runs, on the machine of whoever tests,
// a command that reaches outside its folder.
func (b *block) mustStayInside(t *testing.T) {
	t.Helper()
	for _, c := range b.commands() {
		if outside.MatchString(strings.ReplaceAll(c.line, "/dev/null", "")) {
			t.Fatalf("%s: what reaches outside the folder belongs under %q: %s", b, production,
				c.line)
		}
	}
	if filepath.IsAbs(b.file) {
		t.Fatalf("%s: what reaches outside the folder belongs under %q: %s", b, production, b.file)
	}
}

// command is one of a block, and what the block shows that it prints.
type command struct{ line, shown string }

// commands are those of a console or sh block. One that ends in a backslash
// goes on in the next line.
func (b *block) commands() (all []command) {
	if b.language != "console" && b.language != "sh" {
		return nil
	}
	continued := false
	for _, line := range b.lines {
		typed, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case continued:
			all[len(all)-1].line += "\n" + line
		case prompt || b.language == "sh":
			all = append(all, command{line: typed})
		case len(all) == 0:
			all = append(all, command{shown: line}) // which follow finds to be no command
		default:
			all[len(all)-1].shown += line + "\n"
			continue
		}
		continued = strings.HasSuffix(line, `\`)
	}
	return all
}

// TestTheDocumentsQuoteFilesAsTheyAre compares the files that documents show
// with those that people copy.
func TestTheDocumentsQuoteFilesAsTheyAre(t *testing.T) {
	quotes := 0
	for _, d := range readDocuments(t) {
		for _, b := range d.blocks {
			if b.quoted == "" || len(b.commands()) > 0 {
				continue
			}
			quotes++
			if text, err := os.ReadFile(filepath.Join("..", b.quoted)); err != nil ||
				string(text) != b.text() {
				t.Errorf("%s is not %s, %v", b, b.quoted, err)
			}
		}
	}
	if quotes == 0 {
		t.Error("no file is quoted")
	}
}

// findAll is what the first group matches, sorted, each once.
func findAll(pattern, text string) (found []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// TestEveryLinkInTheDocumentsLeadsSomewhere follows the links to files and
// headings of this repository, pictures among them.
func TestEveryLinkInTheDocumentsLeadsSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()]+)\)|(?:src|srcset)="([^"]+)"`)
	for _, d := range readDocuments(t) {
		for _, match := range link.FindAllStringSubmatch(strings.Join(d.lines, "\n"), -1) {
			target := match[1] + match[2]
			if strings.Contains(target, "://") {
				continue
			}
			file, heading, _ := strings.Cut(target, "#")
			at := d.path
			if file != "" {
				at = path.Join(path.Dir(d.path), file)
			}
			if _, err := os.Stat(filepath.Join("..", at)); err != nil {
				t.Errorf("%s leads to %s: %v", d.path, target, err)
			} else if strings.HasSuffix(at, ".go") {
				continue // TestTheLinksLeadToWhatTheyName looks at the names
			} else if heading != "" && !slices.Contains(readDocument(t, at).anchors(), heading) {
				t.Errorf("%s leads to %s, which has no such heading", d.path, target)
			}
		}
	}
}

// anchors are the names of the headings in links, as GitHub makes them.
func (d *document) anchors() (names []string) {
	for _, line := range d.lines {
		if level, heading, ok := strings.Cut(line, "# "); ok && strings.Trim(level, "#") == "" {
			names = append(names, strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}, heading))
		}
	}
	return names
}

// TestTheDocumentsAreEasyToRead holds them to their width, and the README to its
// length. What programs print is as long as it is, and a table cannot be wrapped.
func TestTheDocumentsAreEasyToRead(t *testing.T) {
	const width, length = 100, 250
	for _, d := range readDocuments(t) {
		if d.path == "README.md" && len(d.lines) > length {
			t.Errorf("%s has %d lines, more than %d", d.path, len(d.lines), length)
		}
		inBlock := false
		for i, line := range d.lines {
			if strings.HasPrefix(line, "```") {
				inBlock = !inBlock
			}
			if !inBlock && !strings.HasPrefix(line, "|") && utf8.RuneCountInString(line) > width {
				t.Errorf("%s:%d is longer than %d characters", d.path, i+1, width)
			}
		}
	}
}

// TestEveryTestThatTheDocumentsNameExists looks for each test in the root and in this module.
func TestEveryTestThatTheDocumentsNameExists(t *testing.T) {
	var tests strings.Builder
	for _, folder := range []string{"..", ".", "histories", "tour"} {
		files, err := filepath.Glob(folder + "/*_test.go")
		noError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			noError(t, err)
			tests.Write(source)
		}
	}
	named := 0
	for _, d := range readDocuments(t) {
		for i, line := range d.lines {
			for _, match := range regexp.MustCompile(
				"`(Test[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(line, -1) {
				named++
				if !strings.Contains(tests.String(), "\nfunc "+match[1]+"(t *testing.T) {") {
					t.Errorf("%s:%d: there is no %s", d.path, i+1, match[1])
				}
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test")
	}
}

// TestEveryTestHoldsAPromise: each row of the table in docs/design.md names a promise of the list
// above it, and each promise has a row.
func TestEveryTestHoldsAPromise(t *testing.T) {
	design := readFile(t, "../docs/design.md")
	promises := findAll(`(?m)^- \*\*([A-Z]\d+)\*\* `, design)
	tested := findAll("(?m)^\\| ([A-Z]\\d+) \\| `Test", design)
	if len(promises) == 0 || !slices.Equal(promises, tested) {
		t.Errorf("the promises are %q, and those with tests %q", promises, tested)
	}
}

// TestThePictureOfATerminalShowsWhatTheDocumentsShow looks for every line of the
// picture in a block that is run.
func TestThePictureOfATerminalShowsWhatTheDocumentsShow(t *testing.T) {
	text, err := os.ReadFile("../docs/terminal.svg")
	noError(t, err)
	var picture struct {
		Lines []string `xml:"text"`
	}
	noError(t, xml.Unmarshal(text, &picture))
	var shown []string
	for _, d := range readDocuments(t) {
		for _, b := range d.blocks {
			shown = append(shown, b.lines...)
		}
	}
	if len(picture.Lines) == 0 {
		t.Error("the picture has no text")
	}
	for _, line := range picture.Lines {
		if !slices.Contains(shown, line) {
			t.Errorf("the picture shows %q, and no document does", line)
		}
	}
}

// TestTheClientsOfTheDocumentsPageThroughEverythingAndWait runs the programs
// that docs/api.md shows against a service that once tells them to wait.
func TestTheClientsOfTheDocumentsPageThroughEverythingAndWait(t *testing.T) {
	t.Parallel()
	const pets = 250
	s := start(t)
	s.stock(pets)
	for file, run := range map[string][]string{"all.py": {"python3"}, "all.mjs": {"node"},
		"all.go": {"go", "run"}} {
		t.Run(file, func(t *testing.T) {
			var refused atomic.Pointer[time.Time]
			var early atomic.Bool
			proxy := s.behind(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
				now := time.Now()
				if r.URL.Query().Get("after") == "100" && refused.CompareAndSwap(nil, &now) {
					w.Header().Set("Retry-After", "1")
					http.Error(w, `{"code":"rate_limited","message":"wait","status":429}`,
						http.StatusTooManyRequests)
					return
				}
				if last := refused.Load(); last != nil && now.Sub(*last) < time.Second {
					early.Store(true)
				}
				pass.ServeHTTP(w, r)
			})
			program := strings.ReplaceAll(documentedFile(t, file), "http://127.0.0.1:8080", proxy)
			path := filepath.Join(t.TempDir(), file)
			noError(t, os.WriteFile(path, []byte(program), 0o600))
			cmd := exec.Command(run[0], append(run[1:], path)...)
			cmd.Env = append(os.Environ(), "KEY="+s.key)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != fmt.Sprintln(pets, "pets") {
				t.Errorf("%s prints %s, %v", file, out, err)
			}
			if refused.Load() == nil || early.Load() {
				t.Errorf("%s was told to wait: %t; came back too early: %t", file,
					refused.Load() != nil, early.Load())
			}

			cmd = exec.Command(run[0], append(run[1:], path)...)
			cmd.Env = append(os.Environ(), "KEY=wrong")
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("%s with a wrong key prints %s", file, out)
			}
		})
	}
}

// documentedFile is the file of that name in the documents.
func documentedFile(t *testing.T, name string) string {
	t.Helper()
	for _, d := range readDocuments(t) {
		for _, b := range d.blocks {
			if b.file == name {
				return b.text()
			}
		}
	}
	t.Fatalf("no document has the file %s", name)
	return ""
}

// snapshot is a repository whose one commit is the working tree, so that what
// is tested is what is being changed.
func snapshot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "--all", ".."},
		{"-c", "user.name=e2e", "-c", "user.email=e2e@example.com", "commit", "-q", "-m",
			"the working tree"},
	} {
		args = append([]string{"--git-dir", dir, "--work-tree", ".."}, args...)
		runs(t, exec.Command("git", args...))
	}
	return dir
}

// terminal is a shell that commands are typed into.
type terminal struct {
	t      *testing.T
	stdin  io.Writer
	stdout *bufio.Reader
	stderr *logBuffer
	values map[string]string // what a document shows: what it is in this run
}

// newTerminal starts a shell with a command.
func newTerminal(t *testing.T, command ...string) *terminal {
	t.Helper()
	x := &terminal{t: t, stderr: &logBuffer{}, values: map[string]string{}}
	shell := exec.Command(command[0], command[1:]...)
	shell.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PETSTORE_")
	})
	// The commit is noted, as is Go's default, whatever this machine's is.
	shell.Env = append(shell.Env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=auto")
	shell.Stderr = x.stderr
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := shell.StdinPipe()
	noError(t, err)
	stdout, err := shell.StdoutPipe()
	noError(t, err)
	noError(t, shell.Start())
	x.stdin, x.stdout = stdin, bufio.NewReader(stdout)
	// All that it has started goes with it, or what still holds its stdout would be waited for.
	hung := time.AfterFunc(15*time.Minute,
		func() { _ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) })
	t.Cleanup(func() {
		hung.Stop()
		stdin.Close()
		if err := shell.Wait(); err != nil {
			t.Errorf("the shell ended with %v", err)
		}
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) // what a failure has left
	})
	return x
}

// moveToFreePorts puts free ports in the place of those that the documents name.
func (x *terminal) moveToFreePorts() {
	x.values[":8080"], x.values[":8081"] = freePort(x.t), freePort(x.t)
	x.run("export PETSTORE_ADDR=localhost:8080")
}

// freePort is a port of this machine, with a colon, that is free just now.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		// below those of outgoing connections, of which other tests make thousands
		port := fmt.Sprint(":", 20_000+rand.IntN(12_000))
		if listener, err := net.Listen("tcp", "localhost"+port); err == nil {
			listener.Close()
			return port
		}
	}
}

// follow does what a block says.
func (x *terminal) follow(b *block) {
	x.t.Helper()
	switch {
	case b.language == "console" || b.language == "sh":
		for _, c := range b.commands() {
			if c.line == "" {
				x.t.Fatalf("%s: a console block begins with a command, after $", b)
			}
			x.compare(b, c)
		}
	case b.quoted != "": // TestTheDocumentsQuoteFilesAsTheyAre
	case b.file != "":
		x.write(b.file, strings.ReplaceAll(b.text(), "API_KEY", x.run(`printf %s "$KEY"`)))
	default:
		x.t.Errorf("%s: no test uses this block: make it console or sh, or name its file in the "+
			"line above", b)
	}
}

// compare runs a command and, of a console block, compares what it prints with
// what is shown. One that shows its failure must fail.
func (x *terminal) compare(b *block, c command) {
	x.t.Helper()
	shown := strings.TrimSpace(c.shown)
	var printed string
	switch {
	case serves.MatchString(c.line):
		printed = x.serve(c.line, shown)
	case regexp.MustCompile(`(?m)^petstore: `).MatchString(shown):
		printed = x.run("! { " + c.line + "\n} 2>&1")
	case logLine.MatchString(shown):
		screen := newScreen(x.t)
		x.run("{ " + c.line + "\n} >" + screen.path + " 2>&1; echo >>" + screen.path)
		printed = bar.ReplaceAllString(screen.await("\n\n"), "")
	default:
		printed = x.run(c.line)
	}
	if b.language == "sh" {
		return
	}
	printed = strings.ReplaceAll(strings.TrimSpace(printed), "\r\n", "\n")
	x.learnKeys(shown, printed)
	if newMinute.MatchString(printed) {
		shown = requestsLeft.ReplaceAllString(shown, newMinute.FindString(printed))
	}
	if want, got := shape(x.real(shown)), shape(printed); got != want {
		x.t.Errorf("%s: $ %s\nprints\n%s\nand not\n%s", b, c.line, got, want)
	}
}

var (
	serves  = regexp.MustCompile(`^(\./petstore|go run \.)( -|$)`)
	logLine = regexp.MustCompile(`(?m)^time=.*\n?`)
	// A minute of the examples' key may end while a client is built. Then a few requests are
	// counted.
	newMinute    = regexp.MustCompile(`\b5[6-9] requests left`)
	requestsLeft = regexp.MustCompile(`\b\d+ requests left`)
	bar          = regexp.MustCompile(`\r.*?\x1b\[K`) // which a slow command shows, and erases
)

// run runs a command, which must succeed, and returns its stdout.
func (x *terminal) run(command string) string {
	x.t.Helper()
	const mark = "\n---- exit status "
	fmt.Fprintf(x.stdin, "{ %s\n} </dev/null\nprintf '%s%%d\\n' $?\n", x.real(command),
		strings.ReplaceAll(mark, "\n", `\n`))
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

// within waits two minutes for a command to succeed, and fails if it does not.
func within(command string) string {
	return "(SECONDS=0; until " + command + "; do sleep 0.1; [ $SECONDS -lt 120 ] || exit 1; done)"
}

// write makes a file.
func (x *terminal) write(file, text string) {
	x.t.Helper()
	x.run(fmt.Sprintf("cat >%s <<'END OF FILE'\n%sEND OF FILE", file, text))
}

// serve starts a service as in a terminal of its own, waits until it is ready,
// and returns what it shows there: all of it, or without the lines of the log if
// the document leaves them out. It must end well at the Ctrl-C when the test ends.
func (x *terminal) serve(command, shown string) string {
	x.t.Helper()
	screen := newScreen(x.t)
	// With -m the service has a process group, so that a signal reaches what go run starts.
	pid := strings.TrimSpace(x.run(fmt.Sprintf("set -m; { exec %s\n} </dev/null >%s 2>&1 & set "+
		"+m; echo $!", command, screen.path)))
	ended := "wait " + pid
	if strings.HasPrefix(command, "go run ") {
		ended += " || true" // go run itself ends with 1 at a Ctrl-C
	}
	x.t.Cleanup(func() { x.run(fmt.Sprintf("kill -INT -- -%s && { %s; }", pid, ended)) })
	printed := screen.await(" msg=ready ")
	if !logLine.MatchString(shown) {
		printed = strings.ReplaceAll(logLine.ReplaceAllString(printed, ""), "\n\n\n", "\n\n")
	}
	return printed
}

// screen is a terminal that programs write to.
type screen struct {
	t     *testing.T
	path  string // of its device, which is the first that it shows
	shown *logBuffer
}

// newScreen opens one, which script keeps open until the test ends.
func newScreen(t *testing.T) *screen {
	t.Helper()
	s := &screen{t: t, shown: &logBuffer{}}
	script := exec.Command("script", "--quiet", "--flush", "--command", "tty; exec sleep infinity",
		"/dev/null")
	script.Stdout = s.shown
	stdin, err := script.StdinPipe()
	noError(t, err)
	noError(t, script.Start())
	t.Cleanup(func() {
		kill(t, script)
		stdin.Close()
	})
	s.path = strings.TrimSpace(s.await("\n"))
	return s
}

// await waits until the screen shows a text, and returns all that it shows, but
// for its own path.
func (s *screen) await(text string) (shown string) {
	s.t.Helper()
	eventually(s.t, 2*time.Minute, func() error {
		shown = strings.TrimPrefix(strings.ReplaceAll(s.shown.String(), "\r\n", "\n"), s.path+"\n")
		if !strings.Contains(shown, text) {
			return fmt.Errorf("the terminal does not show %q, but\n%s", text, shown)
		}
		return nil
	})
	return shown
}

// real puts the values of this run in the place of those that are shown.
func (x *terminal) real(shown string) string {
	var pairs []string
	for value, now := range x.values {
		pairs = append(pairs, value, now)
	}
	return strings.NewReplacer(pairs...).Replace(shown)
}

// learnKeys notes the keys that were printed where others are shown, and the
// last four characters of each, by which people tell them apart.
func (x *terminal) learnKeys(shown, printed string) {
	now := keyForm.FindAllString(printed, -1)
	for i, key := range keyForm.FindAllString(shown, -1) {
		if i < len(now) && x.values[key] == "" &&
			key[:len("pet_live_")] == now[i][:len("pet_live_")] {
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
	{regexp.MustCompile(`(ends |banned to |expired |expires=")[-\d]{10} [:\d]{8}Z`), "${1}TIME"},
	{regexp.MustCompile(`((?:time|made)=)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`), "${1}TIME"},
	{regexp.MustCompile(`/(?:[^/\s"]+/)+([a-z]+\.db)\b`), "FOLDER/${1}"},
	{regexp.MustCompile(`(Retry-After: |retry in )\d+`), "${1}SECONDS"},
	{regexp.MustCompile(`\d+( ns| µs| syncs)\b`), "N${1}"},
}

// shape is a text with the varying values replaced by their names.
func shape(text string) string {
	for _, v := range shapes {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return text
}
