// Package tour holds the exercises of the course, which docs/tour.md begins, and checks what
// students write. Each exercise has a folder: its naive program, if it has one; check.go.txt, a
// test under a name that Go does not build; and solutions as patches, two right ones and then wrong
// ones.
package tour

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Exercise is something to mend in a naive program, or to change in the service.
type Exercise struct {
	Sitting int
	Name    string // also of its folder
	Task    string // in a few words; the documents have the whole
	Hint    string // what to think of; the check says where to look
	Breaks  string // a test of the service that fails, since clients are promised something else

	// on are the files of the service that the check compiles, alone if that works; all is any. A
	// naive program has none.
	on    []string
	stand *standIn
	check func(e Exercise, root string) error // in the place of check.go.txt
}

// all stands for all files of the service.
var all = []string{"all"}

// standIn puts something in the place of what a student's program uses, to see what it does.
type standIn struct {
	file      string
	pattern   *regexp.Regexp
	new, rest string // rest is added at the end of the file
}

// Folder is the exercise's, from the root of the repository.
func (e Exercise) Folder() string { return "e2e/tour/" + e.Name }

// Solution is the path of a solution: right, other, tempting, wrong, wrong2 and so on.
func (e Exercise) Solution(kind string) string { return e.Folder() + "/" + kind + ".patch" }

// Find finds an exercise by its name.
func Find(name string) (Exercise, bool) {
	i := slices.IndexFunc(Exercises, func(e Exercise) bool { return e.Name == name })
	if i < 0 {
		return Exercise{}, false
	}
	return Exercises[i], true
}

// Root is the folder of the repository, above that of the module that go run and go test run in.
func Root() (string, error) {
	gomod, err := exec.CommandContext(context.Background(), "go", "env", "GOMOD").Output()
	return filepath.Dir(filepath.Dir(strings.TrimSpace(string(gomod)))), err
}

// Check returns nil if the exercise is solved, and otherwise an error that says where to look.
func (e Exercise) Check(root string) error {
	if e.check != nil {
		return e.check(e, root)
	}
	dir, err := os.MkdirTemp("", "course-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	folder := root
	if e.on == nil {
		folder = filepath.Join(root, e.Folder())
	}
	files := overlay{"check_test.go": filepath.Join(root, e.Folder(), "check.go.txt")}
	if slices.Equal(e.on, all) {
		files["service_test.go"] = filepath.Join(root, "e2e/tour/service.go.txt")
	}
	if e.stand != nil {
		if err := e.stand.put(folder, dir, files); err != nil {
			return err
		}
	}
	if e.on != nil {
		return checkAlone(folder, e.on, files, "")
	}
	return goTest(folder, files, "")
}

// put writes the file as it is checked into dir.
func (s *standIn) put(folder, dir string, files overlay) error {
	path := filepath.Join(folder, s.file)
	source, err := os.ReadFile(path) //nolint:gosec // of the repository
	if err != nil {
		return err
	}
	if !s.pattern.Match(source) {
		return fmt.Errorf("%s has to keep %q, which the check uses", s.file, s.pattern)
	}
	// With //line, the compiler names the student's file.
	changed := "//line " + path + ":1:1\n" + s.pattern.ReplaceAllString(string(source), s.new) +
		s.rest
	files[s.file] = filepath.Join(dir, s.file)
	return os.WriteFile(files[s.file], []byte(changed), 0o600)
}

// checkAlone runs a test of the service without its own tests and, but for those named, without
// its other files: that takes a tenth of the time. If the files need others now, all are there.
func checkAlone(root string, keep []string, files overlay, test string) error {
	alone := overlay{}
	sources, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil {
		return err
	}
	for _, path := range sources {
		name := filepath.Base(path)
		isTest := strings.HasSuffix(name, "_test.go")
		if isTest || !slices.Equal(keep, all) && !slices.Contains(keep, name) {
			alone[name] = "" // go does not see it
		}
	}
	maps.Copy(alone, files)
	err = goTest(root, alone, test)
	if _, isBuild := errors.AsType[*buildError](err); isBuild {
		return goTest(root, files, test)
	}
	return err
}

// overlay are files that go is to see in a folder: by name, the paths that they are read from.
type overlay map[string]string

// buildError is a program that does not compile.
type buildError struct{ printed string }

func (e *buildError) Error() string { return "it does not compile:\n" + e.printed }

// errNoTest is a test that is not there.
var errNoTest = errors.New("there is no such test")

// goTest runs a test of a folder, or all of them, with the files of an overlay. Its error is what
// they say.
func goTest(folder string, files overlay, test string) error {
	replace := map[string]string{}
	for name, path := range files {
		replace[filepath.Join(folder, name)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "overlay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		return err
	}
	// Without optimizing, compiling takes a third less, and is most of the time.
	cmd := exec.CommandContext(context.Background(), "go", "test", "-gcflags=-N -l -dwarf=false",
		"-count=1", "-vet=off", "-timeout=2m", "-overlay="+list, "-run=^("+test+")",
		".") //nolint:gosec // tests of the course
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	printed := string(out)
	switch {
	case err == nil && strings.Contains(printed, "[no tests to run]"):
		return errNoTest
	case err == nil:
		return nil
	case strings.Contains(printed, "[build failed]") || strings.Contains(printed, "[setup failed]"):
		return &buildError{messages(printed)}
	case strings.Contains(printed, "fatal error: stack overflow"):
		return errors.New("a function calls itself without end (stack overflow). Which call in " +
			"what you have written comes back to it?")
	}
	return errors.New(messages(printed))
}

var (
	frame = regexp.MustCompile(`(?m)^(=== |\s*--- |FAIL|exit status |ok |# ).*\n`)
	place = regexp.MustCompile(`(?m)^\s+check_test\.go:\d+: `)
)

// messages are the lines in which tests, or the compiler, say something. Of a panic, its beginning
// is enough.
func messages(printed string) string {
	lines := strings.Split(place.ReplaceAllString(frame.ReplaceAllString(printed, ""), ""), "\n")
	if len(lines) > 20 {
		lines = append(lines[:20], "…")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
