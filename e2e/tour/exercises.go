// Package tour holds the exercises of docs/tour.md and checks solutions of them. Each has a test in
// stopN, under a name that Go does not build there, and a solution, which is the patch beside it.
package tour

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Exercise is something to mend, in the naive program of a stop, or to change, in the service.
type Exercise struct {
	Stop     int
	Name     string    // also of its files
	Task     string    // in a few words; docs/tour.md has the whole
	Hints    [3]string // where, what, and nearly the code
	Question string    // for those who have solved it
	// tests of the service that fail, since clients are promised something else; none if harmless
	Breaks []string
	Lies   []Lie // of an exercise that asks for a test: what that has to find

	// check says what is still wrong. Without it, the exercise's test has to pass on the service.
	check func(e Exercise, root string, out io.Writer) error
}

// Lie is a change after which the service does not do what it says.
type Lie struct{ Name, File, Old, New string }

// file is the path, from the root of the repository, of one of the exercise's files.
func (e Exercise) file(suffix string) string {
	return fmt.Sprintf("e2e/tour/stop%d/%s%s", e.Stop, e.Name, suffix)
}

// Test is the file with the exercise's test, and Solution that with its patch.
func (e Exercise) Test() string { return e.file("_test.go.txt") }

// Solution is the file with the exercise's patch.
func (e Exercise) Solution() string { return e.file(".patch") }

// Find finds an exercise by its name.
func Find(name string) (Exercise, bool) {
	for _, e := range Exercises {
		if e.Name == name {
			return e, true
		}
	}
	return Exercise{}, false
}

// Root is the folder of the repository, above that of the module that go run and go test run in.
func Root() (string, error) {
	gomod, err := exec.CommandContext(context.Background(), "go", "env", "GOMOD").Output()
	return filepath.Dir(filepath.Dir(strings.TrimSpace(string(gomod)))), err
}

// Check says what is still wrong with a solution, and shows what the tests print.
func (e Exercise) Check(root string, out io.Writer) error {
	if e.check != nil {
		return e.check(e, root, out)
	}
	return goTest(root, overlay{"tour_" + e.Name + "_test.go": filepath.Join(root, e.Test())},
		testNames(root, e), out)
}

// checkMend runs the test of a naive program, which takes a second.
func checkMend(e Exercise, root string, out io.Writer) error {
	folder := filepath.Join(root, "e2e", "tour", fmt.Sprint("stop", e.Stop))
	return goTest(folder, overlay{e.Name + "_test.go": filepath.Join(root, e.Test())},
		testNames(root, e), out)
}

var atomicCounter = regexp.MustCompile(`\bused\s+atomic\.Int64\b`)

// checkMend3 runs the test of stop 3 on a program whose counter is read slowly. Who only deletes
// the sleep would pass with luck otherwise.
func checkMend3(e Exercise, root string, out io.Writer) error {
	folder := filepath.Join(root, "e2e", "tour", "stop3")
	source, err := os.ReadFile(filepath.Join(folder, "main.go")) //nolint:gosec // of the repository
	if err != nil {
		return err
	}
	if !atomicCounter.Match(source) {
		return errors.New("used has to stay an atomic.Int64: there is no \"used atomic.Int64\" " +
			"in stop3/main.go")
	}
	slow := append(atomicCounter.ReplaceAll(source, []byte("used slowly")),
		"\ntype slowly struct{ atomic.Int64 }\n"...)
	dir, err := os.MkdirTemp("", "mend3-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "main.go")
	if err := os.WriteFile(program, slow, 0o600); err != nil {
		return err
	}
	files := overlay{"main.go": program, e.Name + "_test.go": filepath.Join(root, e.Test())}
	return goTest(folder, files, testNames(root, e), out)
}

// checkRace wants the service to lose updates: requests that come one after the other must still be
// counted, and the service's own test of requests that come at once must fail.
func checkRace(_ Exercise, root string, out io.Writer) error {
	var passed strings.Builder
	if err := mustPass(root, overlay{}, oneByOne, &passed); err != nil {
		_, _ = io.WriteString(out, withoutRuns(passed.String()))
		return fmt.Errorf("requests that come one after the other are no longer limited (%s): %w",
			oneByOne, err)
	}
	for range 10 { // it depends on luck
		failed, printed, err := fails(root, overlay{}, allAtOnce)
		if err != nil {
			return err
		}
		if failed {
			_, _ = io.WriteString(out, withoutRuns(printed)+"The test fails, as it must.\n")
			return nil
		}
	}
	return fmt.Errorf("%s has passed 10 times: nothing ran between your two steps. Let others in "+
		"there, as the naive "+
		"program does: time.Sleep(time.Millisecond) or runtime.Gosched()", allAtOnce)
}

var runLine = regexp.MustCompile(`(?m)^=== .*\n`)

// withoutRuns is what go test -v prints, without a line for each test that begins.
func withoutRuns(printed string) string { return runLine.ReplaceAllString(printed, "") }

// checkHonest wants a test that passes on the service as it is, and fails on each lie.
func checkHonest(e Exercise, root string, out io.Writer) error {
	const name = "TestTheCommitIsHonest"
	if err := mustPass(root, overlay{}, name, out); err != nil {
		return fmt.Errorf("%s on the service as it is: %w", name, err)
	}
	missed := 0
	for _, lie := range e.Lies {
		found, err := lie.isFound(root, name)
		if err != nil {
			return err
		}
		verdict := "found: "
		if !found {
			verdict = "missed:"
			missed++
		}
		_, _ = fmt.Fprintln(out, verdict, lie.Name)
	}
	if missed > 0 {
		return fmt.Errorf("%s passes on %d of %d lies", name, missed, len(e.Lies))
	}
	return nil
}

// isFound reports whether the test fails on the lie.
func (l Lie) isFound(root, test string) (bool, error) {
	source, err := os.ReadFile(filepath.Join(root, l.File)) //nolint:gosec // of the repository
	if err != nil {
		return false, err
	}
	if strings.Count(string(source), l.Old) != 1 {
		return false, fmt.Errorf("%s does not have %q once, in the place of which the lie belongs",
			l.File, l.Old)
	}
	dir, err := os.MkdirTemp("", "lie-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	lying := filepath.Join(dir, l.File)
	if err := os.WriteFile(lying, []byte(strings.Replace(string(source), l.Old, l.New, 1)),
		0o600); err != nil {
		return false, err
	}
	found, _, err := fails(root, overlay{l.File: lying}, test)
	return found, err
}

// fails reports whether a test of the folder fails, and what it prints. A test that cannot be run
// is an error.
func fails(folder string, files overlay, test string) (bool, string, error) {
	var printed strings.Builder
	if err := goTest(folder, files, test, &printed); err == nil {
		return false, printed.String(), nil
	}
	if !strings.Contains(printed.String(), "--- FAIL: "+test) {
		return false, "", fmt.Errorf("%s cannot be run:\n%s", test, &printed)
	}
	return true, printed.String(), nil
}

// mustPass is an error unless the test is there and passes.
func mustPass(root string, files overlay, test string, out io.Writer) error {
	var printed strings.Builder
	if err := goTest(root, files, test, io.MultiWriter(out, &printed)); err != nil {
		return err
	}
	if !strings.Contains(printed.String(), "--- PASS: "+test) {
		return errors.New("there is no test with this name in " + root)
	}
	return nil
}

// overlay are files that go is to see in a folder: by name, the paths that they are read from.
type overlay map[string]string

// goTest runs tests of a folder, as go test -overlay lets it see more files than there are.
func goTest(folder string, files overlay, tests string, out io.Writer) error {
	replace := map[string]string{}
	for name, path := range files {
		replace[filepath.Join(folder, name)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	list, err := os.CreateTemp("", "overlay-*.json")
	if err != nil {
		return err
	}
	defer os.Remove(list.Name())
	if _, err := list.Write(text); err != nil {
		return err
	}
	if err := list.Close(); err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), "go", "test",
		//nolint:gosec // tests of the tour
		"-count=1", "-v", "-vet=off", "-timeout=2m", "-overlay="+list.Name(), "-run=^("+tests+")$",
		".")
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("see above for what fails (%w)", err)
	}
	return nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testNames are the tests of an exercise, as -run takes them.
func testNames(root string, e Exercise) string {
	source, _ := os.ReadFile(filepath.Join(root,
		e.Test())) //nolint:gosec // without it, go test says what is missing
	var names []string
	for _, match := range testFunc.FindAllStringSubmatch(string(source), -1) {
		names = append(names, match[1])
	}
	return strings.Join(names, "|")
}
